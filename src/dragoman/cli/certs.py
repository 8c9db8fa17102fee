"""``dragoman certs show|export|rotate``: the authority that harnesses trust, for people and their machines."""

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.output import Failure, print_json, say

if TYPE_CHECKING:
    from dragoman.certs.public import Facts

app = typer.Typer(
    no_args_is_help=True,
    help="The certificate authority that the gateway signs with: look at it, hand its certificate out, replace it.",
    rich_markup_mode=None,
)


def certificates_folder() -> Path:
    """The authority's folder, with an authority in it. Raises ``Failure``."""
    from dragoman.home import state_folder

    if sys.version_info < (3, 12):
        raise Failure("certificates are the gateway's: run this in its environment (Python 3.12)")
    from dragoman.certs.authority import AuthorityError, ensure_authority

    folder = state_folder() / "certs"
    try:
        ensure_authority(folder)
    except AuthorityError as error:
        raise Failure(str(error)) from error
    return folder


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Show the authority's certificate, and which variable makes which runtime trust it.

    It is made here if there is none yet. It is renewed by itself 30 days before its end, under the same key, so that
    what was signed before stays valid.

    \b
        dragoman certs show
    """
    from dragoman.certs.public import facts
    from dragoman.certs.trust import RUNTIMES, trust_environment

    folder = certificates_folder()
    found = facts(folder)
    variables = trust_environment(folder)
    if as_json:
        print_json(
            {
                "certificate": str(found.path),
                "subject": found.subject,
                "sha256": found.fingerprint,
                "not_before": found.not_before.isoformat(),
                "not_after": found.not_after.isoformat(),
                "environment": variables,
            }
        )
        return
    for name, value in described(found, datetime.datetime.now(datetime.UTC)).items():
        print(f"{name:<13} {value}")
    print("\nA runtime trusts it by its variable (a launched harness gets all of them):")
    for runtime in RUNTIMES:
        print(f"  {runtime.variable}={variables[runtime.variable]}")
        print(f"      {runtime.name}; {runtime.effect} the runtime's own roots")


def described(found: "Facts", now: datetime.datetime) -> dict[str, str]:
    """The certificate's facts in words. ``now``: UTC."""
    left = (found.not_after - now).days
    return {
        "certificate": str(found.path),
        "subject": found.subject,
        "SHA-256": found.fingerprint,
        "valid": f"{found.not_before:%Y-%m-%d} to {found.not_after:%Y-%m-%d}, {left} days left",
        "private key": f"{found.path.parent / 'mitmproxy-ca.pem'} (never leaves this machine)",
    }


@app.command()
def export(
    file: Annotated[Path | None, typer.Argument(help="The file to write; without one, PEM goes to stdout.")] = None,
    form: Annotated[
        Literal["pem", "der", "p12"],
        typer.Option("--format", help="`pem`: most programs. `der`: Windows, Android. `p12`: a trust store for Java."),
    ] = "pem",
) -> None:
    """Write the authority's certificate, for a machine or program that is to trust the gateway. Never its key.

    \b
        dragoman certs export > dragoman-ca.pem
        dragoman certs export --format p12 dragoman.p12     # Java, password `changeit`:
        #   java -Djavax.net.ssl.trustStore=dragoman.p12 -Djavax.net.ssl.trustStorePassword=changeit …
    """
    from dragoman.certs.public import STORE_PASSWORD
    from dragoman.certs.public import export as certificate_as

    content = certificate_as(certificates_folder(), form)
    if file is None:
        if form != "pem":
            raise Failure(f"--format {form} is binary: name the file to write")
        print(content.decode(), end="")
        return
    try:
        file.write_bytes(content)
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}") from error
    password = f" (password {STORE_PASSWORD.decode()})" if form == "p12" else ""
    say(f"{file}: the certificate, and no key{password}")


@app.command()
def rotate() -> None:
    """Replace the authority by a new one with a new key, for example after the key was seen by somebody else.

    Gateways that run sign with the old one until they are started again; this names them. Whatever was told by hand to
    trust the old certificate (a system's store, a copy on another machine) must be given the new one.

    \b
        dragoman certs rotate
    """
    from dragoman.home import running_gateways, state_folder

    folder = certificates_folder()
    from dragoman.certs.authority import AuthorityError, rotate_authority
    from dragoman.certs.public import facts

    before = facts(folder)
    try:
        rotate_authority(folder)
    except AuthorityError as error:
        raise Failure(str(error)) from error
    after = facts(folder)
    print(f"old  {before.fingerprint}")
    print(f"new  {after.fingerprint}, until {after.not_after:%Y-%m-%d}")
    running = running_gateways(state_folder())
    if not running:
        print("no gateway runs with this state folder: nothing to start again")
    for address in running:
        print(f"start again: the gateway at {address} signs with the old one; harnesses that run trust only that")
