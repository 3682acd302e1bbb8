"""Settings of the jobs: the file in config/ is their documentation, and the error for a bad value names the setting."""

import re
import tomllib
from typing import Any

import pytest
from annotated_types import Ge, Le

from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig, MetaSection
from adapter.runtime.settings.config import ClientTls, load, parse
from tests.unit.config_files import FILES, comment_above, names_in, settings, with_examples

FILE = FILES / "job.toml"


def job(text: str) -> JobConfig:
    """The settings in this text."""
    return parse(tomllib.loads(text), JobConfig, source="job.toml")


def named() -> list[tuple[str, Any]]:
    """Every setting by its name in a file."""
    return [(name.replace("import_.", "import."), field) for name, field in settings(JobConfig)]


def test_job_toml_equals_the_defaults() -> None:
    """Running with the file is the same as running without it."""
    assert load(FILE, JobConfig) == JobConfig()


def test_job_toml_mentions_every_setting_and_nothing_else() -> None:
    """Optional settings are examples in comments, and these are valid too."""
    values = tomllib.loads(with_examples("job.toml"))
    assert set(names_in(values)) == {name for name, _ in named()}
    parse(values, JobConfig, source="job.toml")


def test_job_toml_gives_each_number_its_bounds() -> None:
    """The comment above a setting has the bounds that are enforced."""
    text = FILE.read_text()
    for name, field in named():
        lowest = next((found.ge for found in field.metadata if isinstance(found, Ge)), None)
        highest = next((found.le for found in field.metadata if isinstance(found, Le)), None)
        if lowest is not None:
            assert f"{lowest:,} to {highest:,}." in comment_above(text, name), name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[imports]", "imports: is not a setting; see the commented file in config/"),
        ("[lag]\njournals = []", "lag.journals: is empty; name at least one (got [])"),
        ("[lag]\njournals = 'data'", "lag.journals: is not a list: write it in [brackets] (got 'data')"),
        ("[lag]\njournals = ['']", "lag.journals.0: is empty; name a path or a URL"),
        ("[lag]\noutput = ''", "lag.output: is empty; name a path or a URL"),
        ("[lag]\noutput = 's3a://b/lag'", "lag: output is a URL: give checkpoint as well"),
        ("[lag]\noutput = 'ftp://u:SECRET@h/p'", "lag.output: ftp://h/p: no such URL can be opened; name a path, or a URL of s3"),
        ("[lag]\njournals = ['http://h/p']", "lag.journals.0: http://h/p: no such URL can be opened"),
        ("[lag]\ncheckpoint = 's3a://K:S@b/c'", "lag: checkpoint: s3a://b/c has credentials, which Spark would show"),
        ("[report]\noutput = 7", "report.output: "),
        ("[lag]\nminimum_points = 11", "lag: minimum_points = 11 is more than window_points = 10"),
        ("[lag]\nwindow_points = 61", "lag.window_points: Input should be less than or equal to 60 (got 61)"),
        ("[import]\nfiles = []", "import.files: is empty; name at least one"),
        ("[import]\nformat = 'csv'", "import.format: Input should be 'rocketmq', 'rocketmq-client' or 'kafka-csv' (got 'csv')"),
        ("[import]\nnamespace = ''", "import.namespace: the name is empty"),
        ("[import]\nshard = '{topic}'", "import.shard: needs {topic} and {partition}: else two queues would share one offset"),
        ("[import]\nshard = '{topic}/{queue}'", "import.shard: {queue} is not a field; there are topic, partition, broker"),
        ("[import]\nshard = '{topic}/{partition}/{topic}'", "import.shard: has a field twice"),
        ("[import]\nshard = '{topic}/{partition:04}'", "import.shard: a field is only its name in braces"),
        ("[import]\nshard = '{topic}/{partition'", "import.shard: "),
        ("[import]\nshard = '{broker}/{topic}/{partition}'", "import: shard = '{broker}/{topic}/{partition}': a rocketmq file"),
        ("[import]\ngroup = '{client}'", "import.group: has {client} without {group}"),
        ("[import]\ngroup = ''", "import.group: the name is empty"),
        ("[import]\ngroup = '{group}@{client}'", "import: group = '{group}@{client}': only rocketmq-client files have a client"),
        ("[export]\ngroup = '{group}@{client}'", "export: group = '{group}@{client}': only rocketmq-client files have a client"),
        ("[export]\nformat = 'rocketmq-client'", "export: rocketmq-client files name a broker: give broker, or a shard pattern"),
        ("[report]\nworst = 0", "report.worst: Input should be greater than or equal to 1 (got 0)"),
        ("[meta]\nload_timeout_ms = 5", "meta.load_timeout_ms: is not a setting"),
        ("[meta]\nendpoints = ['nowhere']", "meta.endpoints.0: 'nowhere' is not host:port"),
    ],
)  # fmt: skip
def test_a_bad_setting_of_a_job_is_refused_by_its_name(text: str, problem: str) -> None:
    """The error has file, section, key, problem and value."""
    with pytest.raises(ConfigError, match=re.escape(f"job.toml: {problem}")):
        job(text)


def test_patterns_may_name_what_the_format_tells() -> None:
    """The client in a client's file, and a broker from the settings."""
    job("[import]\nformat = 'rocketmq-client'\nshard = '{broker}/{topic}/{partition}'\ngroup = '{group}@{client}'")
    job("[import]\nshard = '{broker}/{topic}/{partition}'\nbroker = 'broker-a'")
    job("[export]\nformat = 'rocketmq-client'\nbroker = 'broker-a'")


def test_the_meta_service_is_told_to_the_data_source() -> None:
    """As options of the data source, with TLS if configured."""
    plain = MetaSection(endpoints=("a:1", "b:2"), cluster="c")
    assert plain.options() == {"endpoints": "a:1,b:2", "cluster": "c", "timeoutMs": "30000", "retryMs": "30000"}
    secure = parse({"tls": {"ca": "ca.crt", "cert": "c.crt", "key": "c.key"}}, MetaSection, source="f")
    assert isinstance(secure.tls, ClientTls)
    assert secure.options().items() >= {"tlsCa": "ca.crt", "tlsCert": "c.crt", "tlsKey": "c.key"}.items()
