"""An etcd that is not open to everybody: users and passwords, and certificates."""

import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from adapter.errors import ConfigError, MetaUnavailableError, RefusedError
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.rpc import etcd_pb
from adapter.runtime.settings.config import ClientTls
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.testing.etcd import LocalCluster, etcd_binary
from adapter.testing.processes import free_port
from adapter.testing.waiting import eventually
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.integration.certificates import Authority, Certificate

PATIENT_MS = 10_000  # etcd takes its time to check a password, and so does a busy machine


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """An etcd with authentication, by the commands of docs/etcd.md: `meta-service` may use what is under `p/`."""
    require("an etcd with users", etcd, lambda: "" if shutil.which("etcdctl") else "etcdctl is not installed (etcd-client)")
    with LocalCluster("locked", 1, directory=tmp_path_factory.mktemp("locked")) as cluster:
        for command in (
            "role add offsets",
            "role grant-permission offsets --prefix=true readwrite p/",
            "user add meta-service:secret",
            "user grant-role meta-service offsets",
            "user add root:root",
            "user grant-role root root",
            "auth enable",
        ):
            etcdctl = ["etcdctl", "--endpoints", cluster.endpoints[0], *command.split()]
            subprocess.run(etcdctl, check=True, capture_output=True, env={"ETCDCTL_API": "3"})
        yield cluster


def section(directory: Path, password: str, user: str = "meta-service") -> EtcdSection:
    """Settings with a password file."""
    path = directory / "password"
    path.write_text(password + "\n")
    path.chmod(0o600)
    return EtcdSection(prefix="p/", user=user, password_file=path, timeout_ms=PATIENT_MS)


async def put(cluster: EtcdCluster, key: bytes) -> bool:
    """Put a key; whether it was done."""
    request = etcd_pb.TxnRequest()
    request.success.add().request_put.key = key
    return (await cluster.txn(request)).succeeded


async def test_a_user_does_what_its_role_allows_and_nothing_else(locked: LocalCluster, tmp_path: Path) -> None:
    """Keys under the prefix; another one is refused, and says so."""
    async with EtcdCluster.open("g", MembersSection(endpoints=locked.endpoints), section(tmp_path, "secret")) as cluster:
        assert await put(cluster, b"p/a")
        assert [kv.key for kv in (await cluster.range(etcd_pb.RangeRequest(key=b"p/a"))).kvs] == [b"p/a"]
        with pytest.raises(RefusedError, match="permission denied"):
            await put(cluster, b"q/a")


async def test_a_token_that_is_not_valid_any_more_is_replaced(locked: LocalCluster, tmp_path: Path) -> None:
    """Etcd forgets tokens after five minutes, and when it starts again."""
    async with EtcdCluster.open("g", MembersSection(endpoints=locked.endpoints), section(tmp_path, "secret")) as cluster:
        assert await put(cluster, b"p/a")
        locked.members[0].kill()
        locked.members[0].start()
        assert await put(cluster, b"p/b")


@pytest.mark.parametrize(("user", "password"), [("meta-service", "wrong"), ("nobody", "secret")])
async def test_a_wrong_password_is_refused_at_once(locked: LocalCluster, tmp_path: Path, user: str, password: str) -> None:
    """No retry helps."""
    async with EtcdCluster.open("g", MembersSection(endpoints=locked.endpoints), section(tmp_path, password, user)) as cluster:
        with pytest.raises(RefusedError, match="authentication failed"):
            await put(cluster, b"p/a")


async def test_without_a_user_nothing_is_allowed(locked: LocalCluster) -> None:
    """An etcd with authentication says that a user is missing."""
    async with EtcdCluster.open("g", MembersSection(endpoints=locked.endpoints), EtcdSection(timeout_ms=PATIENT_MS)) as cluster:
        with pytest.raises(RefusedError, match="user name is empty"):
            await put(cluster, b"p/a")


async def test_a_password_that_others_can_read_is_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    """Before anything is called."""
    found = section(tmp_path, "secret")
    assert found.password_file
    found.password_file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"etcd\.password_file: .*chmod 600"):
        async with EtcdCluster.open("g", MembersSection(endpoints=("127.0.0.1:1",)), found):
            pass


async def test_certificates_are_checked_by_both_sides(tmp_path: Path) -> None:
    """Etcd lets in who shows one that its authority has signed; the client calls none that shows another's."""
    require("an etcd with certificates", etcd)
    ours, others = Authority(tmp_path), Authority(tmp_path, "other")
    server, meta, stranger = ours.issue("etcd"), ours.issue("Meta Service"), others.issue("stranger")
    port, metrics = free_port(), free_port()
    flags = [
        f"--data-dir={tmp_path / 'data'}",
        f"--listen-client-urls=https://127.0.0.1:{port}",
        f"--advertise-client-urls=https://127.0.0.1:{port}",
        f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
        f"--listen-metrics-urls=http://127.0.0.1:{metrics}",
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={ours.cert}",
        "--client-cert-auth",
        "--unsafe-no-fsync",
    ]
    members = MembersSection(endpoints=(f"127.0.0.1:{port}",))
    process = _started(flags)
    try:
        await eventually(lambda: _healthy(metrics))
        tls = ClientTls(ca=ours.cert, cert=meta.cert, key=meta.key)
        async with EtcdCluster.open("g", members, EtcdSection(tls=tls, timeout_ms=PATIENT_MS)) as cluster:
            assert await put(cluster, b"a")
        await _exchanged(members, ours.cert, stranger, meta, tmp_path)
        for wrong in (
            ClientTls(ca=ours.cert),
            ClientTls(ca=ours.cert, cert=stranger.cert, key=stranger.key),
            ClientTls(ca=others.cert, cert=meta.cert, key=meta.key),
        ):
            async with EtcdCluster.open("g", members, EtcdSection(tls=wrong)) as cluster:
                with pytest.raises(MetaUnavailableError):
                    await cluster.call(
                        lambda stubs, timeout, metadata: stubs.kv.Range(
                            etcd_pb.RangeRequest(key=b"a"), timeout=timeout, metadata=metadata
                        ),
                        resend=False,
                    )
    finally:
        process.kill()
        process.wait()


async def _exchanged(members: MembersSection, ca: Path, old: Certificate, new: Certificate, directory: Path) -> None:
    """A client whose certificate is replaced on the disk shows the new one over new channels, and only then."""
    shown = Certificate(directory / "shown.crt", directory / "shown.key")
    prepares: list[Callable[[EtcdSection], Prepared]] = []
    settings = EtcdSection(tls=ClientTls(ca=ca, cert=shown.cert, key=shown.key), timeout_ms=PATIENT_MS)
    for source, target in zip(old, shown, strict=True):
        shutil.copy(source, target)
    async with EtcdCluster.open("g", members, settings, prepares.append) as cluster:
        (prepare,) = prepares
        with pytest.raises(MetaUnavailableError):
            await put(cluster, b"a")
        assert prepare(settings) is NOTHING_NEW
        shutil.copy(new.cert, shown.cert)
        with pytest.raises(ConfigError, match=r"^etcd\.tls: .*KEY_VALUES_MISMATCH"):
            prepare(settings)
        shutil.copy(new.key, shown.key)
        prepared = prepare(settings)
        assert prepared.replaced == ["etcd.tls"]
        prepared.apply()
        assert await put(cluster, b"b")


def _started(flags: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([etcd_binary(), *flags], stderr=subprocess.DEVNULL)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except (OSError, ssl.SSLError):
        return False
