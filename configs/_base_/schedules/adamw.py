# AdamW without decay where it would pull towards nothing sensible: norms, learned decays and
# gates, scales, tokens and position tables. A schedule that inherits sets rate and decay.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', betas=(0.9, 0.999)),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={
            name: dict(decay_mult=0.0)
            for name in (
                *('pos_embed', 'cls_token', 'reg_token', 'bias_table'),
                *('prior.gate_bias', 'prior.alpha', 'gamma', 'temperature'),
            )
        },
    ),
)
