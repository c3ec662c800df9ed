//! Finding and ending processes by what `/proc` says of them.
//!
//! Everything started for a sandbox carries a mark in its environment. Reading `/proc`
//! takes no lock, so whoever must be sure asks again until the answer is empty.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::fs::read_to_string;
use std::path::Path;
use std::time::{Duration, Instant};

/// Variable that names the sandbox a process belongs to, as `owner/name`.
pub(crate) const SANDBOX_MARK: &str = "POLAR_SANDBOX";
/// Variable that names the command a process belongs to.
pub(crate) const EXEC_MARK: &str = "POLAR_EXEC";

/// The kernel's flag of a process on its way out.
const EXITING: u64 = 0x4;
/// How long killed processes may take to be gone.
const LONGEST_END: Duration = Duration::from_secs(20);
/// Between two looks at `/proc`.
const PAUSE: Duration = Duration::from_millis(5);

/// Kills what `find` finds until it finds nothing. False when some are still there.
pub(crate) async fn end_all(find: impl Fn() -> HashSet<Pid>) -> bool {
    let deadline = Instant::now() + LONGEST_END;
    let mut killed = HashSet::new();
    loop {
        let found = find();
        // A dying process loses its environment before it is gone, and the first process
        // of a namespace is gone only after all others in it.
        killed.retain(|pid| state(*pid).is_some());
        if found.is_empty() && killed.is_empty() {
            return true;
        }
        kill(&found);
        killed.extend(found);
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Kills without waiting.
pub(crate) fn kill(processes: &HashSet<Pid>) {
    for pid in processes {
        // Gone already is as good.
        let _ = kill_process(*pid, Signal::KILL);
    }
}

/// Living processes whose environment has `variable` with a value that `wanted` accepts.
pub(crate) fn marked(variable: &str, wanted: impl Fn(&str) -> bool) -> HashSet<Pid> {
    let marked = |folder: &Path| {
        let Ok(environment) = std::fs::read(folder.join("environ")) else { return false };
        environment.split(|byte| *byte == 0).any(|entry| {
            let entry = std::str::from_utf8(entry).ok();
            let value = entry.and_then(|entry| entry.strip_prefix(variable)?.strip_prefix('='));
            value.is_some_and(&wanted)
        })
    };
    all().into_iter().filter(|pid| marked(&folder(*pid))).collect()
}

/// All living descendants of a process that forks nothing at the moment, without itself.
/// By the lists that most kernels keep, which is much cheaper than looking at all there is.
pub(crate) fn quiet_descendants(root: Pid) -> HashSet<Pid> {
    if read_to_string(folder(root).join("task").join(root.to_string()).join("children")).is_err() {
        return descendants(root);
    }
    let mut found = HashSet::new();
    let mut todo = vec![root];
    while let Some(pid) = todo.pop() {
        let threads = std::fs::read_dir(folder(pid).join("task")).into_iter().flatten().flatten();
        let lists =
            threads.filter_map(|thread| read_to_string(thread.path().join("children")).ok());
        let children = lists.flat_map(|list| pids(&list)).filter(|pid| state(*pid).is_some());
        todo.extend(children.filter(|pid| found.insert(*pid)));
    }
    found
}

/// Whether it is the first process of a namespace below the one that `/proc` shows.
pub(crate) fn is_first_of_namespace(pid: Pid) -> bool {
    let numbers = numbers(pid);
    numbers.len() > 1 && numbers.last().is_some_and(|number| number == "1")
}

/// In how many namespaces it has a number, from the one that `/proc` shows downwards.
pub(crate) fn depth(pid: Pid) -> usize {
    numbers(pid).len()
}

/// Whether it still runs something: one that only waits to be reaped does not.
pub(crate) fn is_there(pid: Pid) -> bool {
    state(pid).is_some()
}

/// Whether it is gone or on its way. The first process of a namespace takes all others with it
/// before it is gone, and whoever is to reap it may be slow.
pub(crate) fn is_ending(pid: Pid) -> bool {
    state(pid).is_none_or(|state| state.exiting)
}

/// Its numbers in each namespace that it is in; none when it is gone.
fn numbers(pid: Pid) -> Vec<String> {
    let status = read_to_string(folder(pid).join("status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_ascii_whitespace().map(str::to_owned).collect()
}

/// All living descendants of a process, without itself.
pub(crate) fn descendants(root: Pid) -> HashSet<Pid> {
    descendants_in(&states(), root)
}

/// All living descendants of a process, and the members of the group that it leads.
pub(crate) fn family(root: Pid) -> HashSet<Pid> {
    // One look for both: on a busy machine `/proc` is long.
    let states = states();
    let mut found = descendants_in(&states, root);
    let in_group = |(pid, state): &(Pid, State)| (state.group == Some(root)).then_some(*pid);
    found.extend(states.iter().filter_map(in_group));
    found
}

fn descendants_in(states: &[(Pid, State)], root: Pid) -> HashSet<Pid> {
    let mut found = HashSet::from([root]);
    let mut before = 0;
    while found.len() > before {
        before = found.len();
        let is_child = |state: &State| state.parent.is_some_and(|up| found.contains(&up));
        let children = states.iter().filter(|(_, state)| is_child(state));
        let children: Vec<Pid> = children.map(|(pid, _)| *pid).collect();
        found.extend(children);
    }
    found.remove(&root);
    found
}

fn states() -> Vec<(Pid, State)> {
    all().into_iter().filter_map(|pid| Some((pid, state(pid)?))).collect()
}

struct State {
    parent: Option<Pid>,
    group: Option<Pid>,
    exiting: bool,
}

/// None for processes that are gone, which includes those only waiting to be reaped.
fn state(pid: Pid) -> Option<State> {
    let line = read_to_string(folder(pid).join("stat")).ok()?;
    // The program's name is in brackets and may hold anything, brackets included.
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let mut pid = || Pid::from_raw(fields.next()?.parse().ok()?);
    let (parent, group) = (pid(), pid());
    // Behind its session, its terminal and the terminal's group.
    let flags: Option<u64> = fields.nth(3).and_then(|flags| flags.parse().ok());
    Some(State { parent, group, exiting: flags.is_some_and(|flags| flags & EXITING != 0) })
}

fn pids(list: &str) -> Vec<Pid> {
    list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn all() -> Vec<Pid> {
    let own = rustix::process::getpid();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(|pid| *pid != own).collect()
}

fn folder(pid: Pid) -> std::path::PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn process_that_nobody_reaps_is_ending() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        assert!(is_there(pid) && !is_ending(pid));
        child.kill().unwrap();
        let deadline = Instant::now() + LONGEST_END;
        while !is_ending(pid) {
            assert!(Instant::now() < deadline, "it lives on");
            std::thread::yield_now();
        }
        assert!(folder(pid).exists());
        child.wait().unwrap();
        assert!(is_ending(pid) && !is_there(pid));
    }
}
