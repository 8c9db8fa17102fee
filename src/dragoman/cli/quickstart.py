CONTEXT: dict[str, bool] = {}


def quickstart() -> None:
    raise NotImplementedError
