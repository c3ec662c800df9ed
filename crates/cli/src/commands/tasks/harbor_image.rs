//! The image of a Harbor task folder that names none.
//!
//! Nodes make no images: they may have no Docker, and a session must not wait for a build. So
//! an image is built once, here, when that is asked for.

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// What Docker says when it cannot get the image that another is built on.
const NOT_PULLED: [&str; 9] = [
    "failed to resolve",
    "pull access denied",
    "manifest unknown",
    "no such host",
    "dial tcp",
    "i/o timeout",
    "failed to do request",
    "connection refused",
    "TLS handshake",
];

/// What is read of a Dockerfile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Images it is built on.
    from: Vec<String>,
    /// The last folder it changes to.
    pub(super) workdir: Option<String>,
}

impl Recipe {
    /// Reads the Dockerfile of an environment, when there is one.
    pub(super) fn read(environment: &Path) -> Result<Option<Self>> {
        let path = environment.join("Dockerfile");
        if !path.is_file() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(Some(Self::parse(&text)))
    }

    fn parse(text: &str) -> Self {
        let mut recipe = Self::default();
        for line in text.lines().map(str::trim) {
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match word.to_ascii_uppercase().as_str() {
                "FROM" => {
                    let image = rest.split_whitespace().find(|word| !word.starts_with("--"));
                    recipe.from.extend(image.map(str::to_owned));
                }
                "WORKDIR" => {
                    let folder = rest.trim().trim_matches('"');
                    let before = recipe.workdir.take().unwrap_or_else(|| "/".to_owned());
                    recipe.workdir = Some(Path::new(&before).join(folder).display().to_string());
                }
                _ => {}
            }
        }
        recipe
    }
}

/// Builds the image of a folder, or says how to get one.
pub(super) fn image(
    name: &str,
    folder: &Path,
    recipe: Option<&Recipe>,
    build: bool,
) -> Result<String> {
    let Some(recipe) = recipe else {
        bail!(
            "it names no image (environment.docker_image) and has no environment/Dockerfile; \
             --image names one"
        );
    };
    if !build {
        bail!(
            "its image has to be built of environment/Dockerfile (FROM {}): --build does it with \
             the Docker of this machine; or build it elsewhere and name it with --image, or as \
             `docker_image` under [environment] in its task.toml",
            recipe.from.join(", ")
        );
    }
    let tag = tag(name, folder)?;
    let built = Command::new("docker")
        .args(["build", "--quiet", "--tag", &tag])
        .arg(folder.join("environment"))
        .stdin(Stdio::null())
        .output()
        .context("run docker; `apt-get install docker.io` gives it")?;
    if built.status.success() {
        return Ok(tag);
    }
    let said = String::from_utf8_lossy(&built.stderr);
    let hint = match NOT_PULLED.iter().any(|words| said.contains(words)) {
        true => format!(
            "\nthe image that it is built on ({}) could not be pulled: bring it here with `docker \
             load`, or name an image that is here with --image",
            recipe.from.join(", ")
        ),
        false => String::new(),
    };
    bail!("docker build of its environment failed: {}{hint}", said.trim())
}

/// A name that changes with what is built.
fn tag(name: &str, folder: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    hash_folder(&folder.join("environment"), &mut hasher)?;
    let digest: String = hasher.finalize().iter().take(6).map(|b| format!("{b:02x}")).collect();
    let letters = |letter: char| match letter.to_ascii_lowercase() {
        letter if letter.is_ascii_alphanumeric() => letter,
        _ => '-',
    };
    let name: String = name.chars().map(letters).collect();
    Ok(format!("polar-harbor-{}:{digest}", name.trim_matches('-')))
}

fn hash_folder(folder: &Path, hasher: &mut Sha256) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        hasher.update(entry.file_name().as_encoded_bytes());
        hasher.update([0]);
        match entry.file_type()?.is_dir() {
            true => hash_folder(&entry.path(), hasher)?,
            false => hasher.update(fs::read(entry.path()).unwrap_or_default()),
        }
        hasher.update([1]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Recipe;

    #[test]
    fn base_and_folder_are_read_of_a_dockerfile() {
        let recipe = Recipe::parse(
            "# syntax=x\nFROM --platform=linux/amd64 python:3.11 AS build\nWORKDIR /app\n\
             FROM debian:12\nworkdir sub\nRUN true\n",
        );
        assert_eq!(recipe.from, ["python:3.11", "debian:12"]);
        assert_eq!(recipe.workdir.as_deref(), Some("/app/sub"));
        assert_eq!(Recipe::parse("FROM a").workdir, None);
    }
}
