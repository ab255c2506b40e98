"""What others call the keys of a training's recipe, so that an unknown key names ours.

The names are of the requirement's documents, TRL, verl, OpenRLHF, Transformers and PEFT.
"""

from waltzrl.foundation.validation import Synonyms

SYNONYMS: Synonyms = {
    "models.base": (
        *("base_model", "model", "model_name", "model_name_or_path", "model_path", "pretrain"),
    ),
    "models.rank": ("lora_r", "lora_rank", "r"),
    "data.prompts": (
        *("dataset", "dataset_name", "dataset_path", "prompt_data", "train_dataset", "train_files"),
    ),
    "data.held_out": ("test_split", "train_split"),
    "data.validation": ("eval_dataset", "val_files", "validation_dataset"),
    "agents.max_new_tokens": (
        *("generate_max_len", "max_completion_length", "max_generation_length", "max_length"),
        *("max_response_length", "response_length"),
    ),
    "agents.max_rounds": ("max_feedback_rounds", "max_revision_attempts", "max_turns"),
    "judge": ("reward_model", "reward_model_path", "reward_pretrain"),
    "wandb_project": ("project_name", "report_to", "use_wandb", "wandb"),
    "seed": ("data_seed", "random_seed"),
    "stages.steps": ("max_steps", "num_steps", "rl_training_steps", "total_training_steps"),
    "stages.epochs": (
        *("max_epochs", "n_epochs", "num_episodes", "num_epochs", "num_train_epochs"),
        "total_epochs",
    ),
    "stages.prompts_per_step": (
        *("batch_size", "generation_batch_size", "rollout_batch_size", "train_batch_size"),
        *("training_batch_size", "ppo_mini_batch_size"),
    ),
    "stages.group_size": (
        *("n_samples_per_prompt", "num_generations", "num_rollouts", "rollout_n"),
    ),
    "stages.reward": ("reward_fn", "reward_function", "reward_funcs"),
    "stages.coefficients.improvement": ("dir_coefficient", "dir_weight"),
    "stages.coefficients.label": ("label_coefficient", "label_weight"),
    "stages.coefficients.format": ("format_coefficient", "format_weight"),
    "stages.algorithm.aggregation": ("loss_agg_mode", "loss_type"),
    "stages.algorithm.kl_weight": (
        *("beta", "init_kl_coef", "kl_beta", "kl_coef", "kl_coefficient", "kl_loss_coef"),
        "kl_penalty",
    ),
    "stages.algorithm.clip_low": (
        *("clip_eps", "clip_radius", "clip_range", "clip_ratio", "clip_ratio_low", "cliprange"),
        *("eps_clip", "eps_clip_low", "epsilon"),
    ),
    "stages.algorithm.clip_high": (
        *("clip_eps", "clip_radius", "clip_range", "clip_ratio", "clip_ratio_high", "cliprange"),
        *("eps_clip", "eps_clip_high", "epsilon", "epsilon_high"),
    ),
    "stages.algorithm.dual_clip": ("clip_ratio_c", "delta"),
    "stages.algorithm.passes": (
        *("num_iterations", "num_ppo_epochs", "ppo_epochs", "update_epochs"),
    ),
    "stages.optimizer.learning_rate": ("actor_learning_rate", "learning_rate", "lr"),
    "stages.optimizer.warmup_steps": (
        *("lr_warmup_steps", "num_warmup_steps", "warmup_ratio", "warmup_steps"),
    ),
    "stages.optimizer.final_share": ("lr_scheduler_type", "min_lr", "min_lr_ratio"),
    "stages.optimizer.beta2": ("adam_beta2", "betas"),
    "stages.optimizer.gradient_clip": (
        *("clip_grad", "grad_clip", "gradient_clipping", "max_grad_norm", "max_norm"),
    ),
    "stages.optimizer.micro_batch_tokens": (
        *("gradient_accumulation_steps", "micro_batch_size", "micro_train_batch_size"),
        *("per_device_train_batch_size", "ppo_max_token_len_per_gpu"),
    ),
    "checkpointing.checkpoint_every": (
        *("save_every", "save_every_n_steps", "save_freq", "save_interval", "save_steps"),
    ),
    "checkpointing.keep_last": ("max_ckpt_num", "save_total_limit"),
    "checkpointing.validate_every": (
        *("eval_every", "eval_every_n_steps", "eval_interval", "eval_steps", "test_freq"),
    ),
    "compute.checkpoint_activations": ("activation_checkpointing", "gradient_checkpointing"),
    "compute.dtype": ("bf16", "fp16", "param_dtype", "torch_dtype"),
    "compute.rollouts": ("use_vllm", "vllm_mode", "vllm_server_base_url"),
    "compute.ray.learners": ("actor_num_gpus_per_node", "n_gpus_per_node", "num_gpus"),
    "compute.ray.workers": ("num_rollout_workers", "num_vllm_gpus", "vllm_num_engines"),
    "budget.max_usd": ("max_cost", "target_cost", "target_training_cost"),
    "budget.usd_per_hour": ("gpu_hourly_rate",),
    "--out": ("checkpoint_dir", "default_local_dir", "output_dir", "save_path"),
}
"""Our keys, or an option of `waltzrl train`, and what others call each in lower case."""
