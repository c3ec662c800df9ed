//! Where the file of a program is that is known by name.
//!
//! A command with an environment of its own whose program is only named is started by forking the
//! whole node: the table of all its memory is copied, and every thread pays for it again when it
//! writes. A program that is known by its file is spawned without.

use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// A command that runs `program`, looked up in the folders of `path` as the child would do it.
/// What is not found there is left to the child, which says why.
pub(crate) fn command(program: &OsStr, path: Option<&OsStr>) -> Command {
    match path.and_then(|path| file(program, path)) {
        Some(file) => {
            let mut command = Command::new(file);
            command.arg0(program);
            command
        }
        None => Command::new(program),
    }
}

fn file(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if program.is_empty() || Path::new(program).components().count() > 1 {
        return None;
    }
    std::env::split_paths(path)
        // Folders that depend on where the command is run are the child's to search.
        .take_while(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::file;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn executable(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_program_is_the_first_file_of_its_name_that_can_be_executed() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| root.path().join(name);
        fs::create_dir_all(folder("a/tool")).unwrap();
        fs::create_dir_all(folder("b")).unwrap();
        fs::write(folder("b/tool"), "").unwrap();
        executable(&folder("c/tool"));
        executable(&folder("d/tool"));
        let path = std::env::join_paths(["a", "b", "c", "d"].map(folder)).unwrap();
        assert_eq!(file(OsStr::new("tool"), &path), Some(folder("c/tool")));
        assert_eq!(file(OsStr::new("other"), &path), None);
    }

    #[test]
    fn what_depends_on_where_a_command_is_run_is_not_looked_up() {
        let root = tempfile::tempdir().unwrap();
        executable(&root.path().join("tool"));
        let path = std::env::join_paths([Path::new("bin"), root.path()]).unwrap();
        assert_eq!(file(OsStr::new("tool"), &path), None);
        for name in ["./tool", "bin/tool", "/bin/sh", ""] {
            assert_eq!(file(OsStr::new(name), root.path().as_os_str()), None, "{name}");
        }
    }
}
