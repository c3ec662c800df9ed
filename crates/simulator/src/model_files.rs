//! The simulated model's files, for those who make prompts themselves.

use crate::template::TEMPLATE;
use crate::vocabulary::TOKENIZER;
use serde_json::json;
use std::path::Path;
use std::{fs, io};

/// Writes tokenizer and chat template into a folder, as model folders have them.
pub fn write_model_files(folder: &Path) -> io::Result<()> {
    let json = |value: serde_json::Value| format!("{value:#}\n").into_bytes();
    fs::create_dir_all(folder)?;
    fs::write(folder.join("tokenizer.json"), TOKENIZER)?;
    fs::write(folder.join("chat_template.jinja"), TEMPLATE)?;
    let special = json(json!({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}));
    fs::write(folder.join("tokenizer_config.json"), special)?;
    fs::write(folder.join("generation_config.json"), json(json!({"eos_token_id": [4089, 4087]})))?;
    fs::write(folder.join("config.json"), json(json!({"vocab_size": 4096})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vocabulary;
    use serde_json::Value;

    #[test]
    fn the_files_say_what_the_simulator_does() {
        let folder = tempfile::tempdir().unwrap();
        write_model_files(folder.path()).unwrap();
        let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
        let parsed = |name: &str| serde_json::from_slice::<Value>(&read(name)).unwrap();
        let vocabulary = Vocabulary::load().unwrap();
        let ends = parsed("generation_config.json")["eos_token_id"].clone();
        for id in ends.as_array().unwrap() {
            assert!(vocabulary.ends_generation(u32::try_from(id.as_u64().unwrap()).unwrap()));
        }
        assert_eq!(parsed("config.json")["vocab_size"], vocabulary.size());
        assert_eq!(read("tokenizer.json"), TOKENIZER);
    }
}
