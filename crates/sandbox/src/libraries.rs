//! Running this machine's helper on an image that may have another C library or none: its
//! libraries and their loader are shown inside as well.

use crate::helper;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Where they are shown inside.
pub(crate) const INSIDE: &str = "/.polar";
/// How long looking for them may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The helper and what it needs, as shown inside.
#[derive(Debug, Clone)]
pub(crate) struct PortableHelper {
    program: PathBuf,
    /// Names as the program asks for them, with where they are on the host.
    libraries: Vec<(String, PathBuf)>,
}

impl PortableHelper {
    pub(crate) async fn of(program: &Path) -> io::Result<PortableHelper> {
        Ok(PortableHelper { program: program.to_owned(), libraries: libraries(program).await? })
    }

    /// What is to be shown read-only: where it is on the host, and its path inside.
    pub(crate) fn mounts(&self) -> Vec<(PathBuf, PathBuf)> {
        let inside = Path::new(INSIDE);
        let library =
            |(name, host): &(String, PathBuf)| (host.clone(), inside.join("lib").join(name));
        let mut mounts: Vec<_> = self.libraries.iter().map(library).collect();
        mounts.push((self.program.clone(), inside.join("helper")));
        mounts
    }

    /// The command that runs it inside.
    pub(crate) fn command(&self) -> Vec<String> {
        let inside = |path: &str| format!("{INSIDE}/{path}");
        let mut command = vec![];
        let loader = self.libraries.iter().find(|(name, _)| name.starts_with("ld-"));
        if let Some((loader, _)) = loader {
            let loader = inside(&format!("lib/{loader}"));
            command.extend([loader, "--library-path".into(), inside("lib")]);
        }
        command.extend([inside("helper"), helper::SUBCOMMAND.into()]);
        command
    }
}

/// The shared libraries of a program, its loader included; none when it is static.
async fn libraries(program: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let ldd = Command::new("ldd").arg(program).kill_on_drop(true).output();
    let ldd = timeout(LONGEST, ldd).await.map_err(io::Error::other)??;
    // ldd fails on static programs.
    let listing = String::from_utf8_lossy(&ldd.stdout).into_owned();
    let library = |line: &str| {
        let mut words = line.split_ascii_whitespace().filter(|word| *word != "=>");
        let name = words.next()?;
        let path = words.next().filter(|word| word.starts_with('/')).unwrap_or(name);
        let name = Path::new(name).file_name()?.to_str()?.to_owned();
        path.starts_with('/').then(|| (name, PathBuf::from(path)))
    };
    Ok(listing.lines().filter_map(library).collect())
}
