//! Outside of sandboxes: a program that has to end with the node.
//!
//! The kernel can do that for a program that never changes who it is; those that make
//! namespaces do. So this stays beside it and watches whether the node is still there.

use crate::processes::{descendants, is_first_of_namespace, kill};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::Pid;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// How long the program may take to clear up after what it ran was ended.
const CLEAR_UP: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs a program to its end, with this one's stdin and outputs.
pub(super) fn run(program: &str, arguments: &[String]) -> io::Result<ExitCode> {
    let node = io::stdin().as_fd().try_clone_to_owned()?;
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(problem) => {
            let _ = writeln!(io::stderr(), "{program}: {problem}");
            return Ok(ExitCode::from(127));
        }
    };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    std::thread::Builder::new().name("guard".into()).spawn(move || {
        if wait_for_end(&node).is_ok()
            && let Some(pid) = pid
        {
            end(pid);
        }
    })?;
    let status = child.wait()?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// Returns when nobody holds the other end.
fn wait_for_end(node: &OwnedFd) -> io::Result<()> {
    // What comes through it is not for us.
    let poll = || poll(&mut [PollFd::new(node, PollFlags::RDHUP)], None);
    retry_on_intr(poll)?;
    Ok(())
}

/// Ends what the program runs, then what serves it, which it does itself when it can, then
/// the program.
fn end(program: Pid) {
    let deadline = Instant::now() + CLEAR_UP;
    loop {
        let mut all = descendants(program);
        if Instant::now() > deadline {
            all.insert(program);
            return kill(&all);
        }
        kill(&all.into_iter().filter(|pid| is_first_of_namespace(*pid)).collect());
        // When the program ends, so does this one.
        std::thread::sleep(PAUSE);
    }
}
