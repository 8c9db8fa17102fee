CONTEXT: dict[str, bool] = {}


def show() -> None:
    raise NotImplementedError
