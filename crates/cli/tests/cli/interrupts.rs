//! Runs that are interrupted or killed leave nothing.

use crate::support::{Running, User, shown, until};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};

/// A run whose agent is at work: a process, and one that it tries to leave behind.
struct Run {
    user: User,
    engine: String,
    _engine: Running,
}

impl Run {
    fn new() -> Self {
        let user = User::new();
        let (_engine, engine) = user.engine();
        Self { user, engine, _engine }
    }

    fn arguments(&self, task: &str, command: &str) -> Vec<String> {
        let file = self.user.path(&format!("{task}.yaml"));
        let harness = format!("harness: {{name: shell, command: {command:?}}}\n");
        fs::write(&file, format!("task_id: {task}\n{harness}runtime: local\n")).unwrap();
        let file = file.to_str().unwrap();
        ["run", file, "--engine", &self.engine, "--local-isolation=process", "--proxy-port=0"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Starts a run that would go on for ever, and gives its agent's processes.
    fn start(&self, task: &str) -> (Running, Vec<u32>) {
        let (part, file) = (self.user.path("part"), self.user.path(task));
        let (part, shown) = (part.display(), file.display());
        let command = format!(
            "setsid sh -c 'echo $$ >> {part}; echo $PPID >> {part}; mv {part} {shown}; \
             exec sleep 1000000' & wait"
        );
        let arguments = self.arguments(task, &command);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let running = Running::start(self.user.polar(&arguments));
        until("the agent to start", || file.exists());
        let pids = fs::read_to_string(&file).unwrap();
        (running, pids.lines().map(|line| line.parse().unwrap()).collect())
    }

    /// A run that ends by itself.
    fn run_another(&self) {
        let arguments = self.arguments("another", "true");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.user.run(&arguments);
        assert!(output.status.success(), "{}", shown(&output));
    }

    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.user.path(".local/state/polar/runs")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    fn assert_nothing_is_left(&self, pids: &[u32]) {
        assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?} live on");
        assert_eq!(self.folders(), Vec::<PathBuf>::new());
        let temporary = fs::read_dir(self.user.path("tmp")).unwrap();
        assert_eq!(temporary.count(), 0, "temporary files stay");
    }
}

/// Whether it is there, and not only because nobody has asked how it ended.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let state = stat.ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[test]
fn promise_7_an_interrupted_run_ends_all_that_it_started() {
    for (signal, code, name) in [(Signal::INT, 130, "Ctrl-C"), (Signal::TERM, 143, "SIGTERM")] {
        let run = Run::new();
        let (running, pids) = run.start("endless");
        assert!(pids.len() == 2 && pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
        running.signal(signal);
        let output = running.finish();
        let said = shown(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(&format!("interrupted by {name}")), "{said}");
        run.assert_nothing_is_left(&pids);
    }
}

#[test]
fn promise_7_the_next_run_removes_what_a_killed_one_left() {
    let run = Run::new();
    let (mut running, pids) = run.start("endless");
    running.signal(Signal::KILL);
    running.end();
    // As plain processes do, which is what makes the sweep needed.
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    assert_eq!(run.folders().len(), 1);
    run.run_another();
    run.assert_nothing_is_left(&pids);
}

#[test]
fn a_run_leaves_those_that_go_on_alone() {
    let run = Run::new();
    let (running, pids) = run.start("endless");
    run.run_another();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    assert_eq!(run.folders().len(), 1);
    running.signal(Signal::INT);
    running.finish();
    run.assert_nothing_is_left(&pids);
}

#[test]
fn an_interrupted_run_on_a_server_says_that_the_task_goes_on() {
    let run = Run::new();
    let state = run.user.path("up");
    let state = format!("--state={}", state.display());
    let arguments = ["up", "--port=0", "--proxy-port=0", &state, "--engine", &run.engine];
    let arguments = [&arguments[..], &["--local-isolation=process"]].concat();
    let (up, [server]) = run.user.start(&arguments, ["control API"]);
    let (file, command) = (run.user.path("started"), "touch {}; sleep 1000000");
    let command = command.replace("{}", file.to_str().unwrap());
    let task = run.arguments("elsewhere", &command).swap_remove(1);
    let running = Running::start(run.user.polar(&["run", &task, "--server", &server]));
    until("the agent to start", || file.exists());
    running.signal(Signal::INT);
    let output = running.finish();
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("polar cancel elsewhere"), "{said}");
    let cancelled = run.user.run(&["cancel", "elsewhere", "--server", &server]);
    assert!(cancelled.status.success(), "{}", shown(&cancelled));
    until("the task to end", || {
        let status = run.user.run(&["status", "elsewhere", "--server", &server]);
        String::from_utf8_lossy(&status.stdout).contains("elsewhere: cancelled")
    });
    up.signal(Signal::TERM);
    let output = up.finish();
    assert!(output.status.success(), "{}", shown(&output));
}

/// It takes connections and says nothing.
#[test]
fn promise_6_a_server_that_hangs_keeps_no_run_from_ending() {
    let run = Run::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let task = run.arguments("hangs", "true").swap_remove(1);
    let arguments = ["run", &task, "--server", &server, "--token", "any"];
    let running = Running::start(run.user.polar(&arguments));
    let _asked = silent.accept().unwrap();
    running.signal(Signal::TERM);
    let output = running.finish();
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(said.contains("polar status hangs"), "{said}");
}

#[test]
fn a_second_signal_ends_what_the_first_waits_for() {
    let run = Run::new();
    let state = format!("--state={}", run.user.path("up").display());
    let arguments = ["up", "--port=0", "--proxy-port=0", &state, "--engine", &run.engine];
    let arguments =
        [&arguments[..], &["--local-isolation=process", "--grace-seconds=1000"]].concat();
    let (up, [server]) = run.user.start(&arguments, ["control API"]);
    let file = run.user.path("started");
    let command = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 1000000", file.display());
    let task = run.arguments("elsewhere", &command).swap_remove(1);
    let following = Running::start(run.user.polar(&["run", &task, "--server", &server]));
    until("the agent to start", || file.exists());
    let pid = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    up.signal(Signal::INT);
    up.says("waiting up to 1000 s for 1 session to end");
    assert!(is_alive(pid), "it was not waited for");
    up.signal(Signal::INT);
    let output = up.finish();
    assert!(output.status.success(), "{}", shown(&output));
    assert!(!is_alive(pid), "the agent lives on");
    drop(following);
}
