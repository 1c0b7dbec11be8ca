"""`epvi completion`: the script that makes the Tab key complete."""

import click

from epvi.cli.output import Verb, give


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes the Tab key complete verbs, options, models and files.

    \b
    Examples:
      epvi completion bash >> ~/.bashrc
      epvi completion zsh >> ~/.zshrc
      epvi completion fish > ~/.config/fish/completions/epvi.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    script = made(click.get_current_context().find_root().command, {}, "epvi", "_EPVI_COMPLETE").source()
    give({"shell": shell, "script": script}, script)
