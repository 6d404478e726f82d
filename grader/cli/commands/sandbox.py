"""`grade sandbox build` and `grade sandbox check`: make its images, prove what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from grader.sandbox.base import Device
    from grader.sandbox.conformance import Kind


@click.group()
def sandbox() -> None:
    """Build and check the sandbox that submissions run in."""


@sandbox.command()
@click.option("--from-host", is_flag=True, help="Make the image that mounts this host's Python.")
@click.option("--base", metavar="IMAGE", help="Base image of a self-contained image.")
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of wheels to install in it.",
)
@click.option("--tag", help="Name of the self-contained image.  [default: grade-runner:latest]")
def build(from_host: bool, base: str | None, wheels: Path | None, tag: str | None) -> None:
    """Build an image for runners, with no network.

    Either --from-host, a few kilobytes (made by itself when it is missing), or a self-contained
    image from --base and --wheels.
    """
    if from_host and (base or wheels or tag):
        raise click.UsageError("--from-host takes no --base, --wheels or --tag")
    if not from_host and not (base and wheels):
        raise click.UsageError("give --from-host, or --base IMAGE and --wheels DIR")
    from grader.cli.output.terminal import err, out
    from grader.sandbox import images
    from grader.sandbox.base import SandboxError
    from grader.sandbox.docker_engine import docker_client

    try:
        with docker_client() as api:
            if base and wheels:
                log = err()
                made = images.build(
                    api,
                    base,
                    wheels,
                    tag or images.DEFAULT_TAG,
                    lambda line: log.print(line, style="dim"),
                )
                out().print(f"made {made}; use it with GRADE_IMAGE={made}")
            else:
                out().print(f"made {images.host_image(api, 'cpu').tag}; it is used by itself")
    except SandboxError as error:
        raise click.ClickException(str(error)) from None


@sandbox.command()
@click.option(
    "--sandbox",
    "kind",
    type=click.Choice(["docker", "process"]),
    default="docker",
    show_default=True,
)
@click.option("--image", metavar="TAG", help="A self-contained image instead of the host image.")
def check(kind: Kind, image: str | None) -> int:
    """Try to get out of the sandbox, and show what held.

    Exit status 0 when everything held, 1 when something did not.
    """
    if image and kind != "docker":
        raise click.UsageError("--image needs --sandbox docker")
    from rich import box
    from rich.table import Table

    from grader.cli.output.terminal import err, out, safe
    from grader.sandbox.base import SandboxError
    from grader.sandbox.conformance import CHECKS, SandboxUnderTest, run
    from grader.sandbox.host import device_nodes

    device: Device = "cuda" if device_nodes("cuda") else "cpu"
    table = Table("", "promise", "what got through", box=box.SIMPLE_HEAD)
    missed = 0
    try:
        with SandboxUnderTest(kind, device, image) as bench, err().status("") as status:
            described = bench.make_sandbox().describe()
            for number, finding in enumerate(run(bench), 1):
                status.update(f"{number} of {len(CHECKS)}: {finding.promise}")
                mark = (
                    safe("held", style="green") if finding.held else safe("NOT", style="bold red")
                )
                table.add_row(mark, finding.promise, safe("\n".join(finding.holes), 1000))
                missed += not finding.held
    except SandboxError as error:
        raise click.ClickException(str(error)) from None
    out().print(f"{described}, {device}")
    out().print(table)
    held = f"{len(CHECKS) - missed} of {len(CHECKS)} promises held"
    out().print(held, style="bold red" if missed else "bold green")
    if kind == "process":
        out().print("The process sandbox is for your own code; strangers' belongs into Docker.")
    return 1 if missed else 0
