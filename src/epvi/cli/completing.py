"""The verb that makes the Tab key complete: `completion`."""

import click


@click.command
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

    from epvi.cli.door import main

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(main, {}, "epvi", "_EPVI_COMPLETE").source())
