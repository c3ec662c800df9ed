//! The helper of local sandboxes as a program of its own, for whoever embeds
//! `polar-sandbox` without the `polar` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    polar_sandbox::helper::run_if_called().unwrap_or(ExitCode::FAILURE)
}
