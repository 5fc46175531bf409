"""Mixtures of experts in Triton, for any number of tokens in launches whose grids depend only on that number: `route`
chooses experts, `arrange` sorts pairs of tokens and experts into blocks of one expert, `multiply` computes the blocks,
and `combine` adds a token's experts. `weights` has the layout. The maths is in `reference/experts.md`."""
