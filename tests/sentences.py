"""What a refusal must be: one sentence in an `EpviError`, and not a long one."""

import pytest

from epvi import EpviError


def refused(call, sentence, most=400):
    with pytest.raises(EpviError, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < most
