"""`grade sandbox build` and `grade sandbox check`: build its images, test its isolation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from grader.sandbox.base import Device
    from grader.sandbox.conformance import Kind


@click.group()
def sandbox() -> None:
    """Build and test the sandbox that submissions run in."""


@sandbox.command()
@click.option("--from-host", is_flag=True, help="Build the image that mounts this host's Python.")
@click.option("--base", metavar="IMAGE", help="Base of a self-contained image.")
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of wheels to install in a self-contained image.",
)
@click.option("--tag", help="Tag of the self-contained image [default: grade-runner:latest].")
def build(from_host: bool, base: str | None, wheels: Path | None, tag: str | None) -> None:
    """Build an image for runners; no network is used.

    Give --from-host for a small image (built on demand as well), or --base and --wheels for a
    self-contained one.
    """
    if from_host and (base or wheels or tag):
        raise click.UsageError("--from-host takes no --base, --wheels or --tag")
    if not from_host and not (base and wheels):
        raise click.UsageError("give --from-host, or --base IMAGE and --wheels DIR")
    from grader.cli.output.terminal import stderr, stdout
    from grader.sandbox import images
    from grader.sandbox.base import SandboxError
    from grader.sandbox.docker_engine import docker_client

    try:
        with docker_client() as api:
            if base and wheels:
                log = stderr()
                made = images.build(
                    api,
                    base,
                    wheels,
                    tag or images.DEFAULT_TAG,
                    lambda line: log.print(line, style="dim"),
                )
                stdout().print(f"built {made}; use it with GRADE_IMAGE={made}")
            else:
                stdout().print(f"built {images.host_image(api, 'cpu').tag}; it is the default")
    except SandboxError as error:
        raise click.ClickException(str(error)) from None


@sandbox.command()
@click.option(
    "--sandbox",
    "kind",
    type=click.Choice(["docker", "process"]),
    default="docker",
    show_default=True,
    help="Sandbox to test.",
)
@click.option("--image", metavar="TAG", help="A self-contained image instead of the host image.")
def check(kind: Kind, image: str | None) -> int:
    """Try to escape from the sandbox, and show which promises held.

    Exit status: 0 if all of them held, 1 if not.
    """
    if image and kind != "docker":
        raise click.UsageError("--image needs --sandbox docker")
    from rich import box
    from rich.table import Table

    from grader.cli.output.terminal import safe_text, stderr, stdout
    from grader.sandbox.base import SandboxError
    from grader.sandbox.conformance import CHECKS, SandboxUnderTest, run
    from grader.sandbox.host import device_nodes

    device: Device = "cuda" if device_nodes("cuda") else "cpu"
    table = Table("", "promise", "what got through", box=box.SIMPLE_HEAD)
    missed = 0
    try:
        with SandboxUnderTest(kind, device, image) as bench, stderr().status("") as status:
            described = bench.make_sandbox().describe()
            for number, finding in enumerate(run(bench), 1):
                status.update(f"{number} of {len(CHECKS)}: {finding.promise}")
                mark = (
                    safe_text("held", style="green")
                    if finding.held
                    else safe_text("NOT", style="bold red")
                )
                table.add_row(mark, finding.promise, safe_text("\n".join(finding.holes), 1000))
                missed += not finding.held
    except SandboxError as error:
        raise click.ClickException(str(error)) from None
    console = stdout()
    console.print(f"{described}, {device}")
    console.print(table)
    held = f"{len(CHECKS) - missed} of {len(CHECKS)} promises held"
    console.print(held, style="bold red" if missed else "bold green")
    if kind == "process":
        console.print("The process sandbox is for your own code; use Docker for other people's.")
    return 1 if missed else 0
