//! A user of the machine: a home of their own, and an engine to work with.

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No test waits longer for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// Nothing of it is anybody else's, so that tests run beside each other and whatever the
/// real user does.
pub(crate) struct User {
    home: TempDir,
    /// Where agent programs are installed; in the home where nothing is said.
    pub(crate) cache: Option<OsString>,
}

impl User {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("tmp")).unwrap();
        Self { home, cache: None }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    /// The file in which the user's servers keep their token.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.path(".local/state/polar/token")
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.token_file()).unwrap().trim().to_owned()
    }

    pub(crate) fn polar(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polar"));
        command.args(arguments).stdin(Stdio::null());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.home.path()).env("TMPDIR", self.path("tmp"));
        command.envs(self.cache.as_ref().map(|cache| ("POLAR_CACHE", cache)));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Running::start(self.polar(arguments)).finish()
    }

    /// Starts a command that goes on, and gives what it announces behind each word.
    pub(crate) fn start<const N: usize>(
        &self,
        arguments: &[&str],
        announced: [&str; N],
    ) -> (Running, [String; N]) {
        let started = Running::start(self.polar(arguments));
        let found = announced.map(|word| {
            let deadline = Instant::now() + DEADLINE;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let line = started.lines.recv_timeout(left).expect(word);
                if let Some((_, value)) = line.split_once(word) {
                    return value.trim().to_owned();
                }
            }
        });
        (started, found)
    }

    pub(crate) fn engine(&self) -> (Running, String) {
        let (running, [url]) =
            self.start(&["simulate-engine", "--port=0", "--policy=echo"], ["engine simulator at"]);
        (running, url)
    }
}

/// A process of the binary; killed when dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, lines) = follow(child.stdout.take().unwrap());
        let (stderr, errors) = follow(child.stderr.take().unwrap());
        Self { child, lines, errors, stdout: Some(stdout), stderr: Some(stderr) }
    }

    /// Waits until it says something of this kind on stderr.
    pub(crate) fn says(&self, part: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.errors.recv_timeout(left).expect(part).contains(part) {
                return;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                let said = |lines: &Receiver<String>| lines.try_iter().collect::<Vec<_>>();
                let (out, err) = (said(&self.lines), said(&self.errors));
                panic!("waited in vain for its end; it said\n{out:#?}\nand\n{err:#?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end, and gives all that it said.
    pub(crate) fn finish(mut self) -> Output {
        let status = self.end();
        let all = |reader: &mut Option<JoinHandle<String>>| reader.take().unwrap().join().unwrap();
        let (stdout, stderr) = (all(&mut self.stdout), all(&mut self.stderr));
        Output { status, stdout: stdout.into_bytes(), stderr: stderr.into_bytes() }
    }
}

/// Reads an output to its end, and tells of each line.
fn follow(output: impl Read + Send + 'static) -> (JoinHandle<String>, Receiver<String>) {
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut all = String::new();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            all = all + &line + "\n";
            // Nobody may be listening any more.
            let _ = sender.send(line);
        }
        all
    });
    (reader, lines)
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again until it holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a command printed and how it ended, for messages of tests.
pub(crate) fn shown(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}\n{err}", output.status)
}
