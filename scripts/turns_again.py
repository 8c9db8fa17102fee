"""A second question in the session of the first: how each harness goes on with its last conversation. Pure."""

from scripts.harness_rows import Row

QUESTION = "One more thing: run a command, and then say in one sentence what it printed."
CAN_GO_ON = ("pi", "claude", "codex", "gemini", "qwen", "opencode")
"""Keep their sessions, and have an option to go on with the last one."""


def going_on(row: Row, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that goes on where ``command``, which began the session, ended. The question comes as it did there.

    Raises ``ValueError`` for a harness that cannot.
    """
    program, *rest = command
    match row.harness:
        case "pi" | "claude" | "qwen":
            return (program, "--continue", *rest)
        case "gemini":
            return (program, "--resume", "latest", *rest)
        case "opencode" | "codex":
            first, *others = rest  # its subcommand
            return (program, first, *(("resume", "--last") if row.harness == "codex" else ("--continue",)), *others)
    raise ValueError(f"{row.harness} cannot go on with a session")
