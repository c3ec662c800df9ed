//! Writing a file by a command inside, so that links to folders lead nowhere else than for any
//! other command, and the file belongs to the user that commands run as. A link in the place of
//! the file itself is replaced: who writes a test over what an agent left means the test to be there.

use crate::{Exec, ExecEnd, Sandbox, SandboxError};
use std::path::Path;
use std::time::Duration;

/// How long it may take.
const LONGEST: Duration = Duration::from_secs(120);
/// Writes its stdin to `$1` with the mode `$2`. What is there and no file goes first: behind a link
/// the content could get lost (`/dev/null`), and a pipe would wait for a reader. Rights are given to
/// files alone: a device would have them for the whole machine.
const SCRIPT: &str = r#"if [ -L "$1" ] || { [ -e "$1" ] && ! [ -f "$1" ] && ! [ -d "$1" ]; }; then
rm -f -- "$1" || exit
fi
mkdir -p -- "$(dirname -- "$1")" && cat >"$1" && [ -f "$1" ] && chmod "$2" "$1""#;

/// Writes to an absolute path. What the command says is kept for a moment in `folder`,
/// the sandbox's own on the host, which a sweep removes with all that is in it.
pub(crate) async fn write_file(
    sandbox: &dyn Sandbox,
    folder: &Path,
    path: &str,
    content: &[u8],
    executable: bool,
) -> Result<(), SandboxError> {
    let action = format!("write {path}");
    let failed = |problem: std::io::Error| SandboxError::retryable(&action, problem);
    let said = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mode = if executable { "755" } else { "644" };
    let exec = Exec {
        argv: ["/bin/sh", "-c", SCRIPT, "sh", path, mode].map(str::to_owned).to_vec(),
        workdir: None,
        env: Default::default(),
        stdin: Some(content.to_vec()),
        timeout: LONGEST,
        stdout: "/dev/null".into(),
        stderr: said.path().to_owned(),
        output_limit: 4096,
    };
    match sandbox.exec(exec).await? {
        ExecEnd::Exited(0) => Ok(()),
        ExecEnd::TimedOut => Err(SandboxError::retryable(&action, "took too long")),
        ExecEnd::Exited(_) => {
            let said = tokio::fs::read(said.path()).await.map_err(failed)?;
            Err(SandboxError::new(&action, String::from_utf8_lossy(&said).trim()))
        }
    }
}
