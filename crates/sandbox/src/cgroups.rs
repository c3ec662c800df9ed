//! Limits of the kernel's on all processes of a sandbox together.
//!
//! A sandbox with limits has a group of its own below the node's, in each hierarchy that
//! has a controller it needs (version 1) or in the only one (version 2). Where the node
//! may not make groups, that is an error with what to do about it; nothing here looks away.

use crate::limits::not_here;
use crate::{SandboxError, SandboxSpec};
use rustix::process::Pid;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the node is moved to, so that its own group may have others below it.
const OWN_LEAF: &str = "polar-node";
/// Period that shares of processors are counted in, in microseconds.
const PERIOD: u64 = 100_000;
/// How long a group whose processes were killed may take to be removable.
const REMOVAL: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Cpu,
    Memory,
    Pids,
}

impl Controller {
    const ALL: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];

    fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
        }
    }

    fn field(self) -> &'static str {
        match self {
            Controller::Cpu => "cpus",
            Controller::Memory => "memory_mb",
            Controller::Pids => "pids",
        }
    }

    /// The settings for what a spec asks: file and value; those marked so may be missing.
    fn settings(self, version: Version, spec: &SandboxSpec) -> Vec<(&'static str, String, bool)> {
        let bytes = spec.memory_mb.unwrap_or_default().saturating_mul(1 << 20).to_string();
        let quota = ((spec.cpus.unwrap_or_default() * PERIOD as f64) as u64).max(1000);
        match (self, version) {
            (Controller::Cpu, Version::One) => vec![
                ("cpu.cfs_period_us", PERIOD.to_string(), false),
                ("cpu.cfs_quota_us", quota.to_string(), false),
            ],
            (Controller::Cpu, Version::Two) => {
                vec![("cpu.max", format!("{quota} {PERIOD}"), false)]
            }
            (Controller::Memory, Version::One) => vec![
                ("memory.limit_in_bytes", bytes.clone(), false),
                ("memory.memsw.limit_in_bytes", bytes, true),
            ],
            (Controller::Memory, Version::Two) => {
                vec![("memory.max", bytes, false), ("memory.swap.max", "0".into(), true)]
            }
            (Controller::Pids, _) => {
                vec![("pids.max", spec.pids.unwrap_or_default().to_string(), false)]
            }
        }
    }
}

/// Controllers that a spec needs.
fn asked(spec: &SandboxSpec) -> Vec<Controller> {
    let is_asked = |controller: &Controller| match controller {
        Controller::Cpu => spec.cpus.is_some(),
        Controller::Memory => spec.memory_mb.is_some(),
        Controller::Pids => spec.pids.is_some(),
    };
    Controller::ALL.into_iter().filter(is_asked).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group of one sandbox.
#[derive(Debug)]
pub(crate) struct Group {
    folders: Vec<PathBuf>,
    memory: Option<PathBuf>,
}

impl Group {
    /// Makes one with what the spec asks; none when it asks nothing of the kind.
    pub(crate) fn make(spec: &SandboxSpec, mark: &str) -> Result<Option<Group>, SandboxError> {
        let mut group = Group { folders: vec![], memory: None };
        for controller in asked(spec) {
            let made = group.add_controller(controller, spec, mark);
            if let Err(problem) = made {
                group.remove();
                return Err(not_here(controller.field(), advice(&problem)));
            }
        }
        Ok((!group.folders.is_empty()).then_some(group))
    }

    fn add_controller(
        &mut self,
        controller: Controller,
        spec: &SandboxSpec,
        mark: &str,
    ) -> io::Result<()> {
        let (version, own) = own_group(controller)?;
        if version == Version::Two {
            hand_down(&own, controller)?;
        }
        let folder = own.join(name(mark));
        if !self.folders.contains(&folder) {
            match fs::create_dir(&folder) {
                Err(problem) if problem.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            self.folders.push(folder.clone());
        }
        for (file, value, may_be_missing) in controller.settings(version, spec) {
            let file = folder.join(file);
            if !may_be_missing || file.exists() {
                write(&file, &value)?;
            }
        }
        if controller == Controller::Memory {
            self.memory = Some(folder);
        }
        Ok(())
    }

    /// Puts a process in, with all that it starts from now on.
    pub(crate) fn add(&self, process: Pid) -> io::Result<()> {
        let process = process.as_raw_nonzero().to_string();
        self.folders.iter().try_for_each(|folder| write(&folder.join("cgroup.procs"), &process))
    }

    /// How many processes were killed so far because of the limit on memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        self.memory.as_deref().map(memory_kills).unwrap_or_default()
    }

    /// Removes it, once its processes are gone.
    fn remove(&self) {
        for folder in &self.folders {
            if let Err(problem) = remove_when_empty(folder) {
                tracing::warn!(folder = %folder.display(), %problem, "cgroup left to the sweep");
            }
        }
    }
}

/// Fields that this node can't hold to, each with the reason, found out by trying.
pub(crate) fn lacking() -> Vec<(&'static str, String)> {
    let spec = SandboxSpec {
        cpus: Some(1.0),
        memory_mb: Some(1 << 20),
        pids: Some(4096),
        ..SandboxSpec::bare("try-out".to_owned(), PathBuf::new())
    };
    let mark = format!("try-out-{}", std::process::id());
    let mut lacking = Vec::new();
    for controller in Controller::ALL {
        let mut group = Group { folders: vec![], memory: None };
        if let Err(problem) = group.add_controller(controller, &spec, &mark) {
            lacking.push((controller.field(), advice(&problem)));
        }
        group.remove();
    }
    lacking
}

/// Removes the groups that were made under a mark.
pub(crate) fn remove(mark: &str) -> io::Result<()> {
    for controller in Controller::ALL {
        if let Ok((_, own)) = own_group(controller) {
            remove_when_empty(&own.join(name(mark)))?;
        }
    }
    Ok(())
}

/// The group that a process of somebody else's making is in.
#[derive(Debug, Default)]
pub(crate) struct Found(Vec<(Controller, Version, PathBuf)>);

impl Found {
    pub(crate) fn of(process: u32) -> Found {
        let found = |controller| {
            let (version, folder) = group_of(&process.to_string(), controller).ok()?;
            Some((controller, version, folder))
        };
        Found(Controller::ALL.into_iter().filter_map(found).collect())
    }

    pub(crate) fn memory_kills(&self) -> u64 {
        let memory = self.0.iter().find(|(controller, ..)| *controller == Controller::Memory);
        memory.map(|(_, _, folder)| memory_kills(folder)).unwrap_or_default()
    }

    /// The first field that the spec asks for and the group doesn't have.
    pub(crate) fn missing(&self, spec: &SandboxSpec) -> Option<&'static str> {
        let holds = |controller: &Controller| {
            let Some((_, version, folder)) = self.0.iter().find(|(found, ..)| found == controller)
            else {
                return false;
            };
            let mut settings = controller.settings(*version, spec).into_iter();
            settings.all(|(file, value, may_be_missing)| {
                may_be_missing
                    || fs::read_to_string(folder.join(file))
                        .is_ok_and(|found| is_as_strict(&found, &value))
            })
        };
        asked(spec).into_iter().find(|controller| !holds(controller)).map(Controller::field)
    }
}

/// Whether a setting reads as asked. The kernel rounds memory down to whole pages.
fn is_as_strict(found: &str, asked: &str) -> bool {
    match (found.trim().parse::<u64>(), asked.parse::<u64>()) {
        (Ok(found), Ok(asked)) => found <= asked,
        _ => found.trim() == asked,
    }
}

/// The node's own group in the hierarchy with a controller.
fn own_group(controller: Controller) -> io::Result<(Version, PathBuf)> {
    let (version, group) = group_of("self", controller)?;
    // Sandboxes go beside the leaf that the node was moved to, not below it.
    let is_leaf = version == Version::Two && group.ends_with(OWN_LEAF);
    Ok((version, if is_leaf { group.parent().unwrap_or(&group).to_owned() } else { group }))
}

fn group_of(process: &str, controller: Controller) -> io::Result<(Version, PathBuf)> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    find(&groups, &mounts, controller.name())
        .ok_or_else(|| io::Error::other(format!("there is no cgroup of {}", controller.name())))
}

/// Reads what the kernel says of a process's groups and of what is mounted where.
fn find(groups: &str, mounts: &str, controller: &str) -> Option<(Version, PathBuf)> {
    let path_in = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            wanted(parts.next()?).then(|| parts.next())?
        })
    };
    let mounted = |kind: &str, wanted: &dyn Fn(&str) -> bool, path: &str| {
        mounts.lines().find_map(|line| {
            let (start, end) = line.split_once(" - ")?;
            let mut end = end.split(' ');
            if end.next()? != kind || !wanted(end.nth(1)?) {
                return None;
            }
            let mut start = start.split(' ').skip(3);
            let (root, place) = (start.next()?, start.next()?);
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            Some(Path::new(place).join(below))
        })
    };
    let has = |list: &str| list.split(',').any(|name| name == controller);
    if let Some(path) = path_in(&has) {
        return Some((Version::One, mounted("cgroup", &has, path)?));
    }
    let path = path_in(&|list: &str| list.is_empty())?;
    let group = mounted("cgroup2", &|_| true, path)?;
    // One beside hierarchies of version 1 may have none of the controllers.
    let available = fs::read_to_string(group.join("cgroup.controllers")).ok()?;
    available.split_ascii_whitespace().any(|name| name == controller).then_some(())?;
    Some((Version::Two, group))
}

/// Lets groups below have a controller. A group that has one may hold no process itself,
/// so the node moves to a leaf when it is there alone.
fn hand_down(own: &Path, controller: Controller) -> io::Result<()> {
    let file = own.join("cgroup.subtree_control");
    let handed = fs::read_to_string(&file)?;
    if handed.split_ascii_whitespace().any(|name| name == controller.name()) {
        return Ok(());
    }
    let enable = || write(&file, &format!("+{}", controller.name()));
    let Err(problem) = enable() else { return Ok(()) };
    let node = std::process::id().to_string();
    let inside = fs::read_to_string(own.join("cgroup.procs"))?;
    if inside.split_ascii_whitespace().any(|process| process != node) {
        return Err(problem);
    }
    let leaf = own.join(OWN_LEAF);
    if !leaf.exists() {
        fs::create_dir(&leaf)?;
    }
    write(&leaf.join("cgroup.procs"), &node)?;
    enable()
}

fn memory_kills(folder: &Path) -> u64 {
    let said = ["memory.events", "memory.oom_control"]
        .into_iter()
        .find_map(|file| fs::read_to_string(folder.join(file)).ok());
    let said = said.unwrap_or_default();
    let count = said.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

fn remove_when_empty(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + REMOVAL;
    loop {
        match fs::remove_dir(folder) {
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(()),
            // The kernel lets go of killed processes a moment after they are gone.
            Err(problem)
                if problem.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                std::thread::sleep(PAUSE);
            }
            removed => return removed,
        }
    }
}

/// Nodes of one name on a machine have folders of their own, which the mark names.
fn name(mark: &str) -> String {
    let mut hasher = DefaultHasher::new();
    mark.hash(&mut hasher);
    format!("polar-{:016x}", hasher.finish())
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value)
        .map_err(|problem| io::Error::new(problem.kind(), format!("{}: {problem}", file.display())))
}

fn advice(problem: &io::Error) -> String {
    format!(
        "{problem}; a node that runs as root may make cgroups, and one without where they are \
         delegated to it, as by `systemd-run --user --scope -p Delegate=yes polar …` with cgroup \
         version 2; docker holds to it anywhere"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
        31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        32 30 0:28 /jail /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

    #[test]
    fn groups_of_version_1_are_found_below_the_root_that_is_mounted() {
        let groups = "5:memory:/node/polar\n4:cpu,cpuacct:/jail/own\n0::/\n";
        let found = |controller| find(groups, MOUNTS, controller);
        let place = |path: &str| Some((Version::One, PathBuf::from(path)));
        assert_eq!(found("memory"), place("/sys/fs/cgroup/memory/node/polar"));
        assert_eq!(found("cpu"), place("/sys/fs/cgroup/cpu,cpuacct/own"));
        assert_eq!(found("pids"), None);
    }

    #[test]
    fn groups_of_version_2_are_found_where_they_have_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("user.slice/polar.scope");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("cgroup.controllers"), "memory pids\n").unwrap();
        let mounts = format!("30 24 0:26 / {} rw - cgroup2 cgroup2 rw\n", folder.path().display());
        let found = |controller| find("0::/user.slice/polar.scope\n", &mounts, controller);
        assert_eq!(found("pids"), Some((Version::Two, place.clone())));
        assert_eq!(found("cpu"), None);
    }

    #[test]
    fn limits_of_others_are_taken_at_their_word_only_when_they_are_there() {
        assert!(is_as_strict("67108864\n", "67108864") && is_as_strict("67104768", "67108864"));
        assert!(is_as_strict("50000 100000\n", "50000 100000"));
        for unlimited in ["max\n", "9223372036854771712\n", "-1\n"] {
            assert!(!is_as_strict(unlimited, "67108864"), "{unlimited}");
        }
    }
}
