"""Reference for tokens, positions and slots of a step: see `reference/step_inputs.md`."""

import torch


def expand(
    given: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    sampled: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """given [tokens]; starts [rows + 1]; lengths [rows]; tables [groups, rows, blocks]; sampled: ids drawn before.

    Tokens and positions as `given`, slots [groups, tokens].
    """
    tokens, positions = torch.zeros_like(given), torch.zeros_like(given)
    slots = torch.full((len(tables), len(given)), -1, dtype=given.dtype, device=given.device)
    begins = starts.tolist()
    for row, length in enumerate(lengths.tolist()):
        for token in range(begins[row], begins[row + 1]):
            name, position = int(given[token]), length - (begins[row + 1] - token)
            tokens[token] = name if name >= 0 else sampled[-1 - name]
            positions[token] = position
            slots[:, token] = tables[:, row, position // block_size] * block_size + position % block_size
    return tokens, positions, slots
