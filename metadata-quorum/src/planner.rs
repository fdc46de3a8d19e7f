//! Choices that need randomness, time or taste. They run before the log and spell themselves out in commands.
