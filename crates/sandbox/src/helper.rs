//! The program of ours that runs inside a sandbox, before any code that isn't ours.
//!
//! In a local sandbox it opens the listener that leads to the gateway, hands it out, waits
//! for the word to go, and becomes the command. It keeps nothing open, and ends at once
//! when the process that asked for it is gone. In a container, where the node may not
//! enter the network itself, it opens the listener, hands it out and ends. Outside it
//! starts programs that have to end with the node, and in a sandbox that was just made it
//! looks at the image.
//!
//! The `polar` binary is its own helper: its `main` calls [`run_if_called`] before
//! anything else. It never prints except why a command could not be started, on stderr,
//! as a shell would.

mod guard;
mod settle;

pub(crate) use settle::Settled;

use crate::descriptors;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// First argument that makes a binary act as the helper.
pub const SUBCOMMAND: &str = "sandbox-helper";
/// Second argument that makes it open a listener, at the port and for the Unix socket that
/// the next two arguments name.
pub(crate) const LISTEN: &str = "listen";

/// Second argument that makes it run the program that the other arguments name, and end it
/// when nobody holds the other end of its stdin any more.
pub(crate) const GUARD: &str = "guard";
/// Second argument that makes it copy what the folder that the next argument names holds
/// into the one that follows, and print as a [`Settled`] what the image has set.
pub(crate) const SETTLE: &str = "settle";

/// What the helper is asked to become.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Port on the loopback for the gateway; none in a sandbox with an open network.
    pub(crate) port: Option<u16>,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Folder.
    pub(crate) workdir: String,
    /// Most bytes of one file.
    pub(crate) file_size: Option<u64>,
}

/// Acts as the helper when this process was started as one; otherwise does nothing.
/// To be called first in `main`.
pub fn run_if_called() -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == SUBCOMMAND).then(run)
}

/// Where the helper is, when the caller names none: this program if it is `polar`, else
/// one of the two binaries that can act as it, beside this program or one folder up
/// (where Cargo puts binaries, as seen from a test).
pub(crate) fn find() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    if own.file_name()? == "polar" {
        return Some(own);
    }
    let folders = own.ancestors().skip(1).take(2);
    let names = ["polar-sandbox-helper", "polar"];
    folders.flat_map(|folder| names.map(|name| folder.join(name))).find(|path| path.is_file())
}

fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let outcome = match &arguments[..] {
        [listen, port, socket] if listen == LISTEN => hand_out_listener(port, socket),
        [guard, program, arguments @ ..] if guard == GUARD => guard::run(program, arguments),
        [settle, from, to] if settle == SETTLE => settle::settle(from.as_ref(), to.as_ref()),
        _ => become_command(),
    };
    outcome.unwrap_or_else(|problem| {
        // Nowhere else to say it: stderr is kept with the session.
        let _ = writeln!(io::stderr(), "polar: cannot start the command: {problem}");
        ExitCode::from(126)
    })
}

fn hand_out_listener(port: &str, socket: &str) -> io::Result<ExitCode> {
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    descriptors::send(&UnixStream::connect(socket)?, b"ready", Some(&listener))?;
    Ok(ExitCode::SUCCESS)
}

fn become_command() -> io::Result<ExitCode> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some((request, stdin)) = descriptors::receive(&socket)? else {
        return Ok(ExitCode::FAILURE);
    };
    let request: Request = serde_json::from_slice(&request)?;
    let listener = request.port.map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    let listener = listener.transpose()?;
    descriptors::send(&socket, b"ready", listener.as_ref().map(|listener| listener as &dyn AsFd))?;
    drop(listener);
    // Whoever asked must still be there, with everything in place, before code that
    // isn't ours starts.
    if descriptors::receive(&socket)?.is_none() {
        return Ok(ExitCode::FAILURE);
    }
    drop(socket);
    // A crash must not leave its memory in the work folder.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    if request.file_size.is_some() {
        setrlimit(
            Resource::Fsize,
            Rlimit { current: request.file_size, maximum: request.file_size },
        )?;
    }
    exec(&request, stdin.map_or_else(Stdio::null, Stdio::from))
}

/// Replaces this process; returns only when that failed.
fn exec(request: &Request, stdin: Stdio) -> io::Result<ExitCode> {
    let (program, arguments) =
        request.argv.split_first().ok_or_else(|| io::Error::other("empty command"))?;
    if let Err(problem) = std::env::set_current_dir(&request.workdir) {
        return Err(io::Error::new(
            problem.kind(),
            format!("folder {}: {problem}", request.workdir),
        ));
    }
    // What whoever started the node left open is not the command's business.
    close_fds::set_fds_cloexec(3, &[]);
    let problem =
        Command::new(program).args(arguments).env_clear().envs(&request.env).stdin(stdin).exec();
    let _ = writeln!(io::stderr(), "polar: {program}: {problem}");
    let missing = problem.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if missing { 127 } else { 126 }))
}
