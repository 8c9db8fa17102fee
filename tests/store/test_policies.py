"""Policies: numbered without gaps also by two trainers at once, loaded by one gateway at a time, skipped on failure."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.store.policies import STALE_LOAD, PolicyInfo

ENGINE = "http://127.0.0.1:8000"


def add(database: Database, path: str = "/weights", kind: policies.PolicyKind = "lora") -> PolicyInfo:
    with database.session() as session:
        return policies.add_policy(
            session, kind=kind, path=Path(path), parent="base", run="r", step=3, metrics={"reward": 0.5}, now=1.0
        )


def newest(database: Database, engine: str = ENGINE) -> str | None:
    with database.reading() as session:
        found = policies.newest_policy(session, engine)
    return None if found is None else found.version


def claim(database: Database, number: int, now: float) -> bool:
    with database.session() as session:
        return policies.claim_load(session, number, ENGINE, now=now)


def finish(database: Database, number: int, status: policies.LoadStatus, reason: str | None = None) -> None:
    with database.session() as session:
        policies.finish_load(session, number, ENGINE, status, reason=reason, now=9.0)


def test_what_is_published_is_read_back(database: Database) -> None:
    assert newest(database) is None
    added = add(database, "/runs/a")
    assert added == PolicyInfo(1, "policy-v1", "lora", "/runs/a", "base", "r", 3, {"reward": 0.5}, 1.0)
    assert add(database).version == "policy-v2"
    with database.reading() as session:
        assert policies.get_policy(session, 1) == added
        assert policies.get_policy(session, 7) is None
        assert [policy.number for policy, _ in policies.list_policies(session, limit=5)] == [2, 1]
        assert policies.version_numbers(session) == {"base": 0, "policy-v1": 1, "policy-v2": 2}


def test_trainers_that_publish_at_once_get_numbers_of_their_own(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = [policy.number for policy in pool.map(lambda _: add(database), range(24))]
    assert sorted(numbers) == list(range(1, 25))


def test_a_policy_that_an_engine_has_failed_to_load_is_passed_over_there_only(database: Database) -> None:
    add(database)
    add(database)
    assert claim(database, 2, 1.0)
    assert newest(database) == "policy-v2"
    finish(database, 2, "failed", "no such folder")
    assert newest(database) == "policy-v1"
    assert newest(database, "http://other:8000") == "policy-v2"
    with database.reading() as session:
        assert policies.newest_served(session) == 0
    assert claim(database, 1, 1.0)
    finish(database, 1, "serving")
    with database.reading() as session:
        assert policies.newest_served(session) == 1
        (load,) = policies.list_loads(session, 2)
    assert (load.status, load.reason) == ("failed", "no such folder")


def test_one_gateway_loads_at_a_time_until_it_gives_no_sign(database: Database) -> None:
    add(database)
    assert claim(database, 1, 100.0)
    assert not claim(database, 1, 100.0 + STALE_LOAD)
    with database.session() as session:
        policies.touch_load(session, 1, ENGINE, now=110.0)
    assert not claim(database, 1, 101.0 + STALE_LOAD)
    assert claim(database, 1, 111.0 + STALE_LOAD)
    finish(database, 1, "serving")
    assert claim(database, 1, 200.0), "an engine that was restarted is loaded again"
    with database.session() as session:
        policies.drop_load(session, 1, ENGINE)
    assert claim(database, 1, 200.0)


def test_of_many_that_claim_at_once_one_wins(database: Database) -> None:
    add(database)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: claim(database, 1, 100.0), range(8))) == 1


def test_wrong_policies_are_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="'weights' is not absolute"):
        add(database, "weights")
    with pytest.raises(ValueError, match="'half' is no kind of policy; it is one of lora, full"):
        add(database, kind="half")  # type: ignore[arg-type]
    assert newest(database) is None


@pytest.mark.parametrize(("version", "number"), [("base", 0), ("policy-v12", 12), ("policy-v0", None), ("other", None)])
def test_versions_have_numbers(version: str, number: int | None) -> None:
    assert policies.version_number(version) == number
    assert number is None or policies.version_name(number) == version


def test_the_newest_of_a_run_and_the_newest_that_was_served(database: Database) -> None:
    for _ in range(3):
        add(database)
    with database.session() as session:
        policies.add_policy(
            session, kind="lora", path=Path("/x"), parent=None, run="other", step=1, metrics={}, now=1.0
        )
    for number, status in ((2, "serving"), (3, "failed")):
        assert claim(database, number, 1.0)
        finish(database, number, status)  # type: ignore[arg-type]
    with database.reading() as session:
        newest = policies.newest_of_run(session, "r")
        served = policies.newest_of_run(session, "r", served=True)
        assert (newest and newest.number, served and served.number) == (3, 2)
        assert policies.newest_of_run(session, "none") is None
        assert policies.newest_of_run(session, "other", served=True) is None
