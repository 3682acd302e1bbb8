"""The broker's table of offsets: what changed between two polls, under the importer's names."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.formats.rocketmq_json import broker_file
from adapter.formats.rocketmq_rows import rows_of
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.records import LONG_MAX
from adapter.rocketmq.errors import BrokerError
from adapter.rocketmq.offset_table import OffsetTable

NAMING = Naming("ns", broker="broker-a")
SAMPLES = {path.name: path.read_bytes() for path in (Path(__file__).parents[2] / "data/rocketmq").glob("broker-5x*.json")}


def body(table: dict[str, dict[int, int]], lmq: dict[str, int] | None = None) -> bytes:
    """As fastjson writes it."""
    members = ",".join(
        f"{json.dumps(key, ensure_ascii=False)}:{{{','.join(f'{queue}:{offset}' for queue, offset in queues.items())}}}"
        for key, queues in table.items()
    )
    more = "" if lmq is None else ',"lmqOffsetTable":' + json.dumps(lmq, separators=(",", ":"))
    return f'{{"dataVersion":{{"counter":3}},"groupTopicMap":{{"g":["T"]}},"offsetTable":{{{members}}}{more}}}'.encode()


def places(rows: list[OffsetRow]) -> dict[tuple[str, str], int]:
    """(group, shard) -> offset."""
    return {(row.group, row.shard): row.offset for row in rows}


async def test_the_first_table_is_all_new() -> None:
    """With labels and names as an import has them."""
    changes = await OffsetTable(NAMING).take(body({"T@g": {3: 42}}))
    assert changes.changed == [OffsetRow("ns", "g", "broker-a/T/3", 42, topic="T", partition=3)]
    assert not changes.gone
    assert not changes.rejects


async def test_only_what_changed_is_told() -> None:
    """Forwards, backwards, new and gone."""
    table = OffsetTable(NAMING)
    await table.take(body({"T@g": {0: 1, 1: 5, 2: 9}, "U@g": {0: 7}, "V@h": {0: 1}}))
    changes = await table.take(body({"T@g": {0: 2, 1: 3, 3: 0}, "V@h": {0: 1}}))
    assert places(changes.changed) == {("g", "broker-a/T/0"): 2, ("g", "broker-a/T/1"): 3, ("g", "broker-a/T/3"): 0}
    assert places(changes.gone) == {("g", "broker-a/T/2"): 9, ("g", "broker-a/U/0"): 7}
    assert await table.take(body({"V@h": {0: 1}, "T@g": {3: 0, 1: 3, 0: 2}})) == ([], [], [])


async def test_light_queues_have_a_table_of_their_own() -> None:
    """A broker with enableLmq; queue 0 of their topic, as in an import."""
    table = OffsetTable(NAMING)
    changes = await table.take(body({"T@g": {0: 1}}, {"%LMQ%q@%LMQ%q": 11}))
    assert places(changes.changed) == {("g", "broker-a/T/0"): 1, ("%LMQ%q", "broker-a/%LMQ%q/0"): 11}
    changes = await table.take(body({}, {"%LMQ%q@%LMQ%q": 12}))
    assert places(changes.changed) == {("%LMQ%q", "broker-a/%LMQ%q/0"): 12}
    assert places(changes.gone) == {("g", "broker-a/T/0"): 1}


async def test_groups_of_the_broker_itself_stay_with_it() -> None:
    """Transactions, and the revival of POP's messages."""
    table = {"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 4}, "rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP": {0: 9}}
    assert await OffsetTable(NAMING).take(body({**table, "T@CID_SYS_RMQ_TRANS": {0: 1}})) == ([], [], [])


@pytest.mark.parametrize(
    "key",
    ["noat", "a@b@c", "T@", "@g", "T/1@g", "T@g\\u0007", "T@" + "g" * 256, "@", "T@g@broadcast@x"],
    ids=lambda key: key[:12],
)
async def test_a_name_that_cannot_be_used_is_told_once(key: str) -> None:
    """The others are taken."""
    table = OffsetTable(NAMING)
    text = f'{{"offsetTable":{{"{key}":{{0:1}},"T@g":{{0:%d}}}}}}'
    changes = await table.take((text % 5).encode())
    assert places(changes.changed) == {("g", "broker-a/T/0"): 5}
    assert len(changes.rejects) <= 1
    assert not (await table.take((text % 6).encode())).rejects


@pytest.mark.parametrize("queues", ['"0":-1', "0:9223372036854775808", "2147483648:1", "0:1.5", "0:1,,1:2", "x:1"])
async def test_a_number_that_cannot_be_right_is_no_offset(queues: str) -> None:
    """Neither is it a reason to lose the others, unless the whole is no JSON."""
    table = OffsetTable(NAMING)
    text = f'{{"offsetTable":{{"T@g":{{{queues}}},"U@g":{{0:5}}}}}}'.encode()
    try:
        changes = await table.take(text)
    except BrokerError:
        assert not (await table.take(b'{"offsetTable":{}}')).gone
    else:
        assert places(changes.changed)["g", "broker-a/U/0"] == 5
        assert ("g", "broker-a/T/0") not in places(changes.changed)


@pytest.mark.parametrize("gone", [-1, -(2**63)])
async def test_a_committed_number_below_0_is_no_offset_and_needs_no_parser(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker takes and stores -1, and answers "not found". One of them must not make each poll of the whole table slow."""

    def slow(*_: object) -> None:
        pytest.fail("the whole table went through the importer's parser")

    monkeypatch.setattr("adapter.rocketmq.offset_table.broker_file", slow)
    table = OffsetTable(NAMING)
    changes = await table.take(body({"T@g": {0: 5, 1: gone, 2: 7}}, {"%LMQ%q@%LMQ%q": 11}))
    assert places(changes.changed) == {("g", "broker-a/T/0"): 5, ("g", "broker-a/T/2"): 7, ("%LMQ%q", "broker-a/%LMQ%q/0"): 11}
    changes = await table.take(body({"T@g": {0: gone, 1: 6, 2: 7}}, {"%LMQ%q@%LMQ%q": gone}))
    assert places(changes.changed) == {("g", "broker-a/T/1"): 6}
    assert places(changes.gone) == {("g", "broker-a/T/0"): 5, ("%LMQ%q", "broker-a/%LMQ%q/0"): 11}
    assert not changes.rejects


async def test_what_stood_before_a_number_that_cannot_be_right_stands_until_it_is_gone() -> None:
    """What cannot be read says nothing about it."""
    table = OffsetTable(NAMING)
    await table.take(body({"T@g": {0: 5}, "U@g": {0: 1}}))
    changes = await table.take(body({"T@g": {0: 2**63}, "U@g": {0: 1}}))
    assert (changes.changed, changes.gone, len(changes.rejects)) == ([], [], 1)
    assert places((await table.take(body({"U@g": {0: 1}}))).gone) == {("g", "broker-a/T/0"): 5}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b'{"offsetTable":{"T@g":{0:1', b"\xff\xff", b'{"offsetTable":{"T@g":{0:1}}}x']
)
async def test_a_torn_table_changes_nothing(text: bytes) -> None:
    """Otherwise all that is not in it would count as deleted."""
    table = OffsetTable(NAMING)
    await table.take(body({"T@g": {0: 1}}))
    try:
        changes = await table.take(text)
    except BrokerError:
        changes = await table.take(body({"T@g": {0: 1}}))
    assert changes == ([], [], [])


async def test_the_largest_offset_is_javas() -> None:
    """As a broker writes it."""
    changes = await OffsetTable(NAMING).take(body({"T@g": {2_147_483_647: LONG_MAX}}))
    assert places(changes.changed) == {("g", "broker-a/T/2147483647"): LONG_MAX}


names = st.text(st.characters(exclude_characters="@/", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
tables = st.dictionaries(
    st.builds("{}@{}".format, names, names), st.dictionaries(st.integers(0, 9), st.integers(-1, LONG_MAX), max_size=4), max_size=6
)


@pytest.mark.parametrize("sample", sorted(SAMPLES))
async def test_a_brokers_own_file_has_the_names_of_its_import(sample: str) -> None:
    """Group by import, group by bridge: the same keys, labels and offsets."""
    naming = Naming(broker="broker-a")
    imported = [row for row in rows_of(broker_file(io.BytesIO(SAMPLES[sample])), naming) if isinstance(row, OffsetRow)]
    bridged = (await OffsetTable(naming).take(SAMPLES[sample])).changed
    assert sorted(bridged) == sorted(imported)
    assert len(bridged) > 3


@given(tables, tables)
async def test_two_tables_differ_in_what_is_told(before: dict[str, dict[int, int]], after: dict[str, dict[int, int]]) -> None:
    """Compared with the importer's parser, both read as a whole."""
    table = OffsetTable(NAMING)

    def read(text: bytes) -> dict[tuple[str, str], int]:
        return places([row for row in rows_of(broker_file(io.BytesIO(text)), NAMING) if isinstance(row, OffsetRow)])

    old, new = read(body(before)), read(body(after))
    assert places((await table.take(body(before))).changed) == old
    changes = await table.take(body(after))
    assert places(changes.changed) == {key: offset for key, offset in new.items() if old.get(key) != offset}
    assert places(changes.gone) == {key: offset for key, offset in old.items() if key not in new}
