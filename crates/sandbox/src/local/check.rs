//! Whether local sandboxes work on this machine, and what to do when they don't.

use super::{LocalConfig, LocalIsolation};
use crate::SandboxError;
use crate::program::Program;
use crate::spawner::Spawner;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How to get bubblewrap.
const GET: &str = "`apt-get install bubblewrap` (or `dnf install bubblewrap`) gives it, \
     or allow plain processes if harnesses may do all that this user may";
/// What may keep it from making namespaces.
const NAMESPACES: &str = "it needs unprivileged user namespaces: \
     `sysctl -w kernel.unprivileged_userns_clone=1` on older Debian, \
     `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu 24.04 and later, \
     `sysctl -w user.max_user_namespaces=15000` where that is 0; in a container, start it with \
     `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`";
/// How long trying it may take.
const TRY: Duration = Duration::from_secs(20);
const ACTION: &str = "check local sandboxes";

pub(super) async fn check(
    config: &LocalConfig,
    program: Option<&Program>,
    spawner: &Spawner,
) -> Result<(), SandboxError> {
    if config.isolation == LocalIsolation::Process {
        return Ok(());
    }
    helper(config, program)?;
    let mut command = Command::new(&config.bubblewrap);
    command.args(["--unshare-user", "--unshare-pid", "--unshare-net", "--die-with-parent"]);
    // Not all of the machine: mounts of others, such as containers, come and go meanwhile.
    command.args(super::bubblewrap::system()).args(["--", "/bin/sh", "-c", ":"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = spawner
        .spawn(command)
        .await
        .map_err(|problem| SandboxError::new(ACTION, not_run(&config.bubblewrap, &problem)))?;
    let output = match tokio::time::timeout(TRY, child.wait_with_output()).await {
        Ok(output) => output.map_err(|problem| SandboxError::retryable(ACTION, problem))?,
        Err(_) => return Err(SandboxError::retryable(ACTION, format!("no end within {TRY:?}"))),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(SandboxError::new(ACTION, refused(&said)))
}

/// Says that bubblewrap could not be started, and how to get it.
pub(super) fn not_run(program: &Path, problem: &std::io::Error) -> String {
    format!("cannot run {}: {problem}; {GET}", program.display())
}

/// Says what bubblewrap says against its arguments or the kernel, and what may help.
pub(super) fn refused(said: &str) -> String {
    format!("{}; {NAMESPACES}", said.trim())
}

/// The helper, which must have been there when the provider was made.
pub(super) fn helper<'a>(
    config: &LocalConfig,
    program: Option<&'a Program>,
) -> Result<&'a Path, SandboxError> {
    let program = program.ok_or_else(|| {
        let place = match &config.helper {
            Some(path) => format!("{} is not there", path.display()),
            None => "neither `polar` nor `polar-sandbox-helper` is beside this program".into(),
        };
        let message = format!(
            "{place}; name a `polar` binary as `helper`, or build one with \
             `cargo build --package polar-sandbox`"
        );
        SandboxError::new(ACTION, message)
    })?;
    program.path().map_err(|problem| {
        let message = format!("cannot keep the `polar` that was replaced: {problem}");
        SandboxError::retryable(ACTION, message)
    })
}
