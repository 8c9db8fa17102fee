"""What the harness is started with; the runs themselves are in tests/e2e/test_probe.py."""

from dragoman.cli.probe_run import fill


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    values = {"{prompt}": "say {hi}", "{base_url}": "http://127.0.0.1:1"}

    assert fill('{"url": "{base_url}/v1", "x": {y}}', values) == '{"url": "http://127.0.0.1:1/v1", "x": {y}}'
    assert fill("{prompt}", values) == "say {hi}"
    assert fill("-p", values) == "-p"
