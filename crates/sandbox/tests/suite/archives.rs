//! Images as archives, without a daemon that would make them.

use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// As `docker save` writes it.
pub(crate) fn docker(root: &Path, archive: &Path) {
    let layer = layer(root);
    let config = config(&layer);
    let config_name = format!("{}.json", sha256(&config));
    let manifest =
        json!([{"Config": config_name, "RepoTags": ["test:1"], "Layers": ["layer.tar"]}]);
    let manifest = manifest.to_string().into_bytes();
    write(archive, &[(&config_name, &config), ("layer.tar", &layer), ("manifest.json", &manifest)]);
}

/// As the Open Container Initiative has it.
pub(crate) fn oci(root: &Path, archive: &Path) {
    let layer = layer(root);
    let config = config(&layer);
    let describe = |kind: &str, content: &[u8]| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{}", sha256(content)),
            "size": content.len(),
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": describe("config.v1+json", &config),
        "layers": [describe("layer.v1.tar", &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut described = describe("manifest.v1+json", &manifest);
    described["annotations"] = json!({"org.opencontainers.image.ref.name": "test"});
    let index = json!({"schemaVersion": 2, "manifests": [described]}).to_string();
    let blob = |content: &[u8]| format!("blobs/sha256/{}", sha256(content));
    write(
        archive,
        &[
            ("oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#),
            ("index.json", index.as_bytes()),
            ("blobs/", b""),
            ("blobs/sha256/", b""),
            (&blob(&manifest), &manifest),
            (&blob(&config), &config),
            (&blob(&layer), &layer),
        ],
    );
}

fn layer(root: &Path) -> Vec<u8> {
    let mut layer = tar::Builder::new(vec![]);
    layer.follow_symlinks(false);
    layer.append_dir_all(".", root).unwrap();
    layer.into_inner().unwrap()
}

fn config(layer: &[u8]) -> Vec<u8> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config: Value = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(layer))]},
    });
    config.to_string().into_bytes()
}

fn write(archive: &Path, entries: &[(&str, &[u8])]) {
    let mut tar = tar::Builder::new(std::fs::File::create(archive).unwrap());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        tar.append_data(&mut header, name, *content).unwrap();
    }
    tar.finish().unwrap();
}

fn sha256(content: &[u8]) -> String {
    let mut sum =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sum.stdin.take().unwrap().write_all(content).unwrap();
    let said = sum.wait_with_output().unwrap().stdout;
    String::from_utf8(said).unwrap()[..64].to_owned()
}
