//! The files of an image with nothing but a statically linked busybox.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const BUSYBOX: &str = "/bin/busybox";
/// Busybox's own, with a limit on waiting.
pub(crate) const CONNECT: &str = r#"exec nc -w 5 "$1" "$2""#;

pub(crate) fn make_root(root: &Path) {
    assert!(
        Path::new(BUSYBOX).exists(),
        "{BUSYBOX} is missing: `apt-get install busybox-static` gives it"
    );
    for folder in ["bin", "etc", "proc", "sys", "dev", "tmp", "usr/bin"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    std::fs::set_permissions(root.join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::copy(BUSYBOX, root.join("bin/busybox")).unwrap();
    let tools = Command::new(BUSYBOX).arg("--list").output().unwrap();
    for tool in String::from_utf8(tools.stdout).unwrap().lines() {
        let link = root.join("bin").join(tool);
        if !link.exists() {
            symlink("busybox", link).unwrap();
        }
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
}
