"""The same training on a Ray cluster: Ray places its processes, and replaces those that die.

    driver                 `waltzrl train --ray`: asks for the places, shows progress
      |-- LearningProcess  one for each rank: the trainer, exactly as torchrun starts it
      `-- RolloutWorker    each collaborates on a share of a step's prompts, and judges

A placement group holds the places. Nothing here schedules: a worker that dies is started again by
Ray, with the same call; learners are started again together, and go on from the last checkpoint.
"""
