//! Programs are installed once, whole or not at all.

use crate::ground::within;
use polar_session::HarnessAdapter;
use polar_session::harness::Installer;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A stand-in for npm that counts its runs; `does` is what it does in the folder.
fn npm(folder: &Path, does: &str) -> PathBuf {
    let path = folder.join("npm");
    let log = folder.join("runs").display().to_string();
    fs::write(&path, format!("#!/bin/sh\necho \"$@\" >> {log}\n{does}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn runs(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("runs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn adapter(package: &str) -> HarnessAdapter {
    let adapter = json!({
        "name": "mine", "version": "1.2.3", "provider": "any", "model": "m",
        "install": {"npm": [package], "expect": ["node_modules/agent"]},
        "command": ["{{ bin }}/agent"],
    });
    HarnessAdapter::from_json("mine", &adapter).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_at_once_install_once() {
    let folder = tempfile::tempdir().unwrap();
    let npm = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(npm);
    let adapter = adapter("agent@1.2.3");
    assert!(!installer.is_installed(&adapter));
    let many = (0..8).map(|_| {
        let (installer, adapter) = (installer.clone(), adapter.clone());
        tokio::spawn(async move { installer.ensure(&adapter).await.unwrap().unwrap().folder })
    });
    let mut folders = Vec::new();
    for installed in many.collect::<Vec<_>>() {
        folders.push(within(installed).await.unwrap());
    }
    folders.dedup();
    assert_eq!(folders.len(), 1);
    assert!(folders[0].join("node_modules/agent").exists());
    assert!(installer.is_installed(&adapter));
    let runs = runs(folder.path());
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(runs[0].ends_with("-- agent@1.2.3"), "{runs:?}");
}

#[tokio::test]
async fn another_recipe_of_the_same_name_has_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let npm = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(npm);
    let one = installer.ensure(&adapter("agent@1.2.3")).await.unwrap().unwrap();
    let other = installer.ensure(&adapter("fork@1.2.3")).await.unwrap().unwrap();
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_failed_installation_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = adapter("agent@1.2.3");
    let fails = npm(folder.path(), "touch half-made; echo 'E404 not found' >&2; exit 1");
    let error = Installer::new(folder.path()).with_npm(fails).ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("E404 not found"), "{error}");

    let lacks = npm(folder.path(), "true");
    let error = Installer::new(folder.path()).with_npm(lacks).ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("node_modules/agent is missing"), "{error}");

    let absent = folder.path().join("no-npm");
    let error = Installer::new(folder.path()).with_npm(absent).ensure(&adapter).await.unwrap_err();
    assert!(error.to_string().contains("install Node.js 20"), "{error}");

    let works = npm(folder.path(), "mkdir -p node_modules && touch node_modules/agent");
    let installer = Installer::new(folder.path()).with_npm(works);
    assert!(!installer.is_installed(&adapter));
    let done = installer.ensure(&adapter).await.unwrap().unwrap();
    assert!(!done.folder.join("half-made").exists());
}
