"""What a row's saved flows say, and an outcome on its way through its file."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

from mitmproxy import io
from mitmproxy.test import tflow, tutils

from scripts.harness_outcome import note_kept, read_flows, read_outcome
from scripts.turns_rows import NOTE, NOTE_FILE
from tests.test_e2e_harnesses import GOOD
from tests.test_turns_verdicts import ACCOUNT


def test_flows_tell_who_was_asked_and_who_was_reached(tmp_path: Path) -> None:
    path = tmp_path / "flows"
    with path.open("wb") as file:
        writer = io.FlowWriter(file)  # type: ignore[no-untyped-call]
        for host, status, server in (
            ("api.openai.com", 200, "127.0.0.1"),
            ("github.com", 404, None),
            ("github.com", 407, None),
            ("127.0.0.1", 200, "127.0.0.1"),
            ("evil.example", 200, "192.0.2.1"),
        ):
            flow = tflow.tflow(req=tutils.treq(host=host, scheme=b"https"), resp=tutils.tresp(status_code=status))
            flow.server_conn.peername = None if server is None else (server, 443)
            writer.add(flow)

    hosts, escaped = read_flows(path)

    assert hosts == ("evil.example 200", "github.com 404/407")
    assert escaped == ("evil.example",)


def test_an_outcome_is_read_back_whole(tmp_path: Path) -> None:
    for outcome in (GOOD, replace(GOOD, account=ACCOUNT)):
        (tmp_path / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))

        assert read_outcome(tmp_path) == outcome


def test_an_outcome_of_an_older_script_is_none(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    values = dataclasses.asdict(GOOD)
    del values["steps"]
    (tmp_path / "outcome.json").write_text(json.dumps(values))
    assert read_outcome(tmp_path) is None


def test_the_note_must_be_what_the_model_wrote(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    assert not note_kept(tmp_path)
    for text, kept in ((NOTE, True), (NOTE + "\n", True), (NOTE.replace("ï", "i"), False), (NOTE + "\n\n", False)):
        (tmp_path / "work" / NOTE_FILE).write_text(text)
        assert note_kept(tmp_path) == kept
