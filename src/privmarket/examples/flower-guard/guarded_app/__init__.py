"""An ordinary Flower app; three marked lines of its client make it a guarded one."""
