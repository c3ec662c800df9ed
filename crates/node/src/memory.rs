//! The memory that sandboxes of this machine may be given.
//!
//! That of the machine, or of the narrowest cgroup that the node is in, as on a cluster that gives
//! jobs a part of one; less what node, engine client and system need. Read once, at the start.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that sandboxes are not given, in MiB; of small machines a part.
const RESERVE_MB: u64 = 2048;
const RESERVE_SHARE: u64 = 4;

/// In MiB, where it can be told.
pub(crate) fn for_sandboxes() -> Option<u64> {
    let total_mb = total_mb(Path::new("/"))?;
    Some(without_reserve(total_mb))
}

fn without_reserve(total_mb: u64) -> u64 {
    total_mb - RESERVE_MB.min(total_mb / RESERVE_SHARE)
}

/// Of a machine whose files are below `root`.
fn total_mb(root: &Path) -> Option<u64> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.as_deref().and_then(of_meminfo);
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = limit_files(root, &cgroups).into_iter();
    let limits = limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    machine.into_iter().chain(limits.map(|bytes: u64| bytes >> 20)).min()
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 10)
}

/// Where limits of the process's cgroups stand, from its own to the outermost. What has none says
/// `max`, or a number that is larger than any machine.
fn limit_files(root: &Path, cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (hierarchy, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            some if some.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let hierarchy = root.join(hierarchy);
        let own = Path::new(path.trim_start_matches('/'));
        files.extend(own.ancestors().map(|group| hierarchy.join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        total_mb(root.path())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");

    #[test]
    fn the_narrowest_of_machine_and_cgroups_counts() {
        assert_eq!(machine(&[]), None);
        assert_eq!(machine(&[MEMINFO]), Some(16384));
        let job = ("proc/self/cgroup", "0::/slurm/job\n");
        let own = ("sys/fs/cgroup/slurm/job/memory.max", "max\n");
        let outer = ("sys/fs/cgroup/slurm/memory.max", "4294967296\n");
        assert_eq!(machine(&[MEMINFO, job, own]), Some(16384));
        assert_eq!(machine(&[MEMINFO, job, own, outer]), Some(4096));
        let first = ("proc/self/cgroup", "7:cpu,memory:/job\n3:pids:/elsewhere\n");
        let unlimited = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        let limited = ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(machine(&[MEMINFO, first, unlimited]), Some(16384));
        assert_eq!(machine(&[MEMINFO, first, unlimited, limited]), Some(1024));
    }

    #[test]
    fn a_part_is_kept_back() {
        assert_eq!(without_reserve(65_536), 63_488);
        assert_eq!(without_reserve(4096), 3072);
        assert!(for_sandboxes().is_some_and(|mb| mb > 0), "this machine has some");
    }
}
