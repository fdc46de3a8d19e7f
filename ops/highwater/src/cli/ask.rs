//! Before something dangerous: the plan, and the question.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use super::{CliError, Exit};

/// Whether a plan is only shown, carried out, or asked about.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Consent {
    /// Show the plan, change nothing
    #[arg(long, alias = "validate-only", alias = "dry")]
    pub dry_run: bool,
    /// Do not ask; for scripts
    #[arg(short, long)]
    pub yes: bool,
}

/// Shows what would be done, and asks whether to. `false`: only to look.
///
/// # Errors
/// The answer is no, or there is nobody to ask and no `--yes`.
pub(super) fn go_on(plan: &str, consent: &Consent) -> Result<bool, CliError> {
    if consent.dry_run {
        print!("{plan}");
        return Ok(false);
    }
    if consent.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        let message = format!("{plan}nothing was changed: there is nobody to ask, so add --yes to do it");
        return Err(CliError::new(Exit::Usage, message));
    }
    eprint!("{plan}Go on? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(true),
        _ => Err(CliError::new(Exit::Interrupted, "nothing was changed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_never_goes_on_and_yes_never_asks() {
        assert_eq!(go_on("", &Consent { dry_run: true, yes: true }), Ok(false));
        assert_eq!(go_on("", &Consent { dry_run: false, yes: true }), Ok(true));
    }
}
