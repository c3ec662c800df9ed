//! Taking over from an image: what it has in the work folder, and what it sets.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Settled {
    /// The environment that the image sets.
    pub(crate) env: BTreeMap<String, String>,
}

/// Apptainer's own, by how they begin, and what a shell sets for itself.
const NOT_OF_THE_IMAGE: [&str; 2] = ["APPTAINER_", "SINGULARITY_"];
const OF_A_SHELL: [&str; 7] =
    ["HOME", "OLDPWD", "PROMPT_COMMAND", "PS1", "PWD", "SHLVL", "LD_LIBRARY_PATH"];
/// What Apptainer sets as `LD_LIBRARY_PATH` itself; an image's own value goes before it.
const OWN_LIBRARIES: &str = "/.singularity.d/libs";

pub(super) fn settle(from: &Path, to: &Path) -> io::Result<ExitCode> {
    match fs::metadata(from) {
        Ok(found) if found.is_dir() => copy_content(from, to)?,
        Ok(_) => return Err(named(from, io::Error::other("it is not a folder"))),
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => {}
        Err(problem) => return Err(named(from, problem)),
    }
    serde_json::to_writer(io::stdout(), &Settled { env: env_of_image() })?;
    io::stdout().flush()?;
    Ok(ExitCode::SUCCESS)
}

fn env_of_image() -> BTreeMap<String, String> {
    let of_image = |name: &str| {
        !NOT_OF_THE_IMAGE.iter().any(|start| name.starts_with(start)) && !OF_A_SHELL.contains(&name)
    };
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut env: BTreeMap<String, String> = all.filter(|(name, _)| of_image(name)).collect();
    let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let of_image = libraries.trim_end_matches(OWN_LIBRARIES).trim_end_matches(':');
    if !of_image.is_empty() {
        env.insert("LD_LIBRARY_PATH".into(), of_image.into());
    }
    env
}

/// Copies files, folders and links with their rights and times.
fn copy_content(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from).map_err(|problem| named(from, problem))? {
        let entry = entry.map_err(|problem| named(from, problem))?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        copy(&from, &to).map_err(|problem| named(&from, problem))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    if found.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    if found.is_dir() {
        fs::create_dir(to)?;
        copy_content(from, to)?;
        File::open(to)?.set_times(times(&found)?)?;
        return fs::set_permissions(to, found.permissions());
    }
    // Pipes, sockets and devices are nobody's work.
    if found.is_file() {
        fs::copy(from, to)?;
        File::open(to)?.set_times(times(&found)?)?;
    }
    Ok(())
}

/// What builds go by.
fn times(found: &Metadata) -> io::Result<FileTimes> {
    Ok(FileTimes::new().set_modified(found.modified()?))
}

fn named(path: &Path, problem: io::Error) -> io::Error {
    io::Error::new(problem.kind(), format!("{}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    #[test]
    fn what_an_image_has_is_copied_with_rights_times_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("deep/er")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("deep/er/run"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(from.join("deep/er/run"), fs::Permissions::from_mode(0o751)).unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let times = FileTimes::new().set_modified(old);
        File::open(from.join("deep/er/run")).unwrap().set_times(times).unwrap();
        File::open(from.join("deep")).unwrap().set_times(times).unwrap();
        std::os::unix::fs::symlink("er/run", from.join("deep/link")).unwrap();
        File::open(from.join("deep")).unwrap().set_times(times).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            from.join("pipe"),
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();

        copy_content(&from, &to).unwrap();

        let copied = fs::metadata(to.join("deep/er/run")).unwrap();
        assert_eq!(copied.permissions().mode() & 0o777, 0o751);
        assert_eq!(copied.modified().unwrap(), old);
        assert_eq!(fs::metadata(to.join("deep")).unwrap().modified().unwrap(), old);
        assert_eq!(fs::read_link(to.join("deep/link")).unwrap(), Path::new("er/run"));
        assert!(!to.join("pipe").exists());
    }
}
