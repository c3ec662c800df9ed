//! What a test stands on: a provider, a gateway, and eyes on the host.

use polar_sandbox::{AllowedMount, Exec, ExecEnd, Sandbox, SandboxProvider, SandboxSpec};
use polar_types::Network;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest time that anything in a test may take.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Variable that tells a child process of a test to use the sandbox folder it names and to
/// wait there to be killed.
pub(crate) const STAY: &str = "POLAR_TEST_STAY_IN";

/// What providers differ in, as far as tests must know.
pub(crate) struct Traits {
    pub(crate) image: Option<String>,
    /// Files, processes and network are the sandbox's own.
    pub(crate) isolated: bool,
    /// Memory, processes and processors can be limited wherever it runs.
    pub(crate) limits: bool,
    /// An open network can be taken away.
    pub(crate) closes_network: bool,
    /// The death of the node ends its commands, before any sweep.
    pub(crate) dies_with_node: bool,
    /// Script that connects to host `$1` port `$2`, sends its stdin and prints the answer.
    pub(crate) connect: &'static str,
    /// Removes what a test of this node leaves when it fails half-way.
    pub(crate) clean_up: fn(node: &str),
}

pub(crate) struct Ground {
    pub(crate) provider: Box<dyn SandboxProvider>,
    pub(crate) traits: Traits,
    pub(crate) dir: TempDir,
    pub(crate) gateway: std::net::SocketAddr,
}

pub(crate) struct Outcome {
    pub(crate) end: ExecEnd,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ground {
    pub(crate) async fn new(
        make: impl FnOnce(&Path) -> (Box<dyn SandboxProvider>, Traits),
    ) -> Ground {
        // A child shares its parent's state, and leaves nothing beside it when killed.
        let shared = std::env::var_os(STAY).map(PathBuf::from);
        let shared = shared.as_deref().and_then(Path::parent);
        let above = shared.map_or_else(std::env::temp_dir, Path::to_owned);
        let dir = tempfile::Builder::new().prefix("polar-sandbox-test-").tempdir_in(above).unwrap();
        let state = shared.unwrap_or(dir.path());
        let (provider, traits) = make(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        let listener = tokio::net::UnixListener::bind(dir.path().join("gateway.sock")).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        Ground { provider, traits, dir, gateway }
    }

    pub(crate) fn spec(&self, name: &str) -> SandboxSpec {
        SandboxSpec {
            name: name.into(),
            host_dir: self.dir.path().join("hosts").join(name),
            image: self.traits.image.clone(),
            workdir: "/workspace".into(),
            env: BTreeMap::from([("FROM_SPEC".into(), "spec value".into())]),
            network: Network::None,
            allowed_hosts: Vec::new(),
            gateway_socket: self.dir.path().join("gateway.sock"),
            gateway_address: self.gateway,
            read_only: vec![],
            cpus: None,
            memory_mb: None,
            pids: None,
            user: None,
            storage_mb: None,
            gpus: None,
            mounts: vec![],
        }
    }

    pub(crate) async fn sandbox(&self, name: &str) -> Box<dyn Sandbox> {
        within(self.provider.create(self.spec(name))).await.unwrap()
    }

    /// An exec of a shell script, with everything else as usual.
    pub(crate) fn script(&self, script: &str) -> Exec {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let output = |name: &str| self.dir.path().join("output").join(format!("{number}.{name}"));
        Exec {
            argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
            workdir: None,
            env: BTreeMap::new(),
            stdin: None,
            timeout: LONGEST,
            stdout: output("stdout"),
            stderr: output("stderr"),
            output_limit: 1 << 20,
        }
    }

    pub(crate) async fn run(&self, sandbox: &dyn Sandbox, exec: Exec) -> Outcome {
        let (stdout, stderr) = (exec.stdout.clone(), exec.stderr.clone());
        let end = within(sandbox.exec(exec)).await.unwrap();
        let read =
            |path: PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        Outcome { end, stdout: read(stdout), stderr: read(stderr) }
    }

    /// Runs a script that must succeed; gives what it printed.
    pub(crate) async fn sh(&self, sandbox: &dyn Sandbox, script: &str) -> String {
        let outcome = self.run(sandbox, self.script(script)).await;
        assert_eq!(outcome.end, ExecEnd::Exited(0), "{script}: {}", outcome.stderr);
        outcome.stdout
    }

    /// What a connection from inside to that address answers, if there is one.
    pub(crate) async fn connect(
        &self,
        sandbox: &dyn Sandbox,
        host: &str,
        port: u16,
    ) -> Option<String> {
        self.ask(sandbox, host, port, "GET / HTTP/1.0\r\n\r\n").await
    }

    /// As [`Ground::connect`], with a request of one's own.
    pub(crate) async fn ask(
        &self,
        sandbox: &dyn Sandbox,
        host: &str,
        port: u16,
        request: &str,
    ) -> Option<String> {
        let mut exec = self.script(self.traits.connect);
        exec.argv.extend(["sh".into(), host.into(), port.to_string()]);
        exec.stdin = Some(request.as_bytes().to_vec());
        exec.timeout = Duration::from_secs(10);
        let outcome = self.run(sandbox, exec).await;
        (outcome.end == ExecEnd::Exited(0)).then_some(outcome.stdout)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // A child that is part of a test leaves things on purpose.
        if std::thread::panicking() && std::env::var_os(STAY).is_none() {
            (self.traits.clean_up)(&node_of(self.dir.path()));
        }
    }
}

/// The helper, also where another user runs the tests, who may not see the build folder.
pub(crate) fn helper() -> PathBuf {
    let placed = std::env::var_os("POLAR_TEST_HELPER");
    placed.map_or_else(|| env!("CARGO_BIN_EXE_polar-sandbox-helper").into(), PathBuf::from)
}

/// Whether groups with limits can be made here, as the kernel itself says.
#[allow(dead_code, reason = "container engines make their own")]
pub(crate) fn may_make_cgroups() -> bool {
    let name = format!("polar-test-{}", std::process::id());
    ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].into_iter().any(|place| {
        let group = Path::new(place).join(&name);
        let made = std::fs::create_dir(&group).is_ok();
        let limited = made && std::fs::metadata(group.join("cgroup.procs")).is_ok();
        let _ = std::fs::remove_dir(&group);
        limited
    })
}

/// What providers of tests allow to be shown: below their state, to be read or written.
pub(crate) fn allowed(state: &Path) -> Vec<AllowedMount> {
    let allow = |name: &str, writable| AllowedMount { path: state.join(name), writable };
    vec![allow("readable", false), allow("writable", true)]
}

/// Nodes of tests that run at the same time must not sweep each other.
pub(crate) fn node_of(state: &Path) -> String {
    state.file_name().unwrap().to_str().unwrap().to_owned()
}

async fn answer(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) {
    let mut request = [0; 1024];
    let _ = stream.read(&mut request).await;
    let _ =
        stream.write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 16\r\n\r\nthis is gateway\n").await;
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST, work).await.expect("took too long")
}

/// A number of seconds to sleep for that nobody else sleeps for: names a process in a way
/// that shows in the host's process list, from any sandbox.
pub(crate) struct Token(pub(crate) String);

impl Token {
    pub(crate) fn new() -> Token {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Token(format!("{}{}", 1_000_000 + std::process::id(), 100 + number))
    }

    /// Living processes on the host with this token as an argument.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let with_token = |pid: &i32| {
            let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
            line.split(|byte| *byte == 0).any(|argument| argument == self.0.as_bytes())
        };
        pids.filter(with_token).collect()
    }

    pub(crate) async fn wait_for(&self, wanted: impl Fn(usize) -> bool, what: &str) {
        let deadline = Instant::now() + LONGEST;
        while !wanted(self.processes().len()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.processes());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Mounts on the host at or below a folder.
pub(crate) fn mounts_below(folder: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = |line: &&str| {
        line.split(' ').nth(4).is_some_and(|place| Path::new(place).starts_with(folder))
    };
    mounts.lines().filter(below).map(str::to_owned).collect()
}
