"""The tables hold every field of the records, and names that migrations can rely on."""

from dataclasses import fields

from dragoman.store.models import Base, Call, table_of
from dragoman.store.records import CallArrival, CallOutcome


def test_a_call_has_a_column_for_every_field_of_its_records() -> None:
    named = {field.name for field in (*fields(CallArrival), *fields(CallOutcome))}
    elsewhere = {"state"}  # reply_states
    assert set(table_of(Call).columns.keys()) == named - elsewhere | {"row", "completion_len"}


def test_every_constraint_and_index_has_a_name() -> None:
    for table in Base.metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name
        assert all(index.name for index in table.indexes), table.name
