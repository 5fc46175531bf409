"""The time of a step that workers, router and autoscaler aim at."""

STEP_TARGET = 0.9  # of `slo.tpot`: an arriving sequence also waits for the end of a step, and estimates err
