//! Arrays of numbers as engines give them, each brought to the one form of [`EngineArray`].

use crate::EngineArray;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;

/// An array in NumPy's file format, in base64, as vLLM gives routed experts. None for anything
/// else.
pub(crate) fn from_npy(text: &str) -> Option<EngineArray> {
    let bytes = STANDARD.decode(text).ok()?;
    let rest = bytes.strip_prefix(b"\x93NUMPY")?;
    let (header, data) = match rest {
        [1, _, low, high, rest @ ..] => {
            rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?
        }
        [2 | 3, _, a, b, c, d, rest @ ..] => {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).ok()?)?
        }
        _ => return None,
    };
    let header = std::str::from_utf8(header).ok()?;
    let (dtype, size) = dtype(quoted(field(header, "'descr':")?)?)?;
    if !field(header, "'fortran_order':")?.starts_with("False") {
        return None;
    }
    let shape = shape(field(header, "'shape':")?)?;
    let count = shape.iter().try_fold(1_u64, |all, side| all.checked_mul(*side))?;
    (count.checked_mul(size)? == data.len() as u64).then(|| EngineArray {
        dtype: dtype.to_owned(),
        shape,
        data: STANDARD.encode(data),
    })
}

/// Rows of 32-bit numbers in base64, as SGLang gives routed experts: how many rows there are is known
/// from the tokens, what a row is made of only to the trainer's model.
pub(crate) fn from_rows(text: &str, rows: u64) -> Option<EngineArray> {
    const SIZE: u64 = 4;
    let bytes = STANDARD.decode(text).ok()?.len() as u64;
    let width = bytes.checked_div(rows * SIZE)?;
    (width * rows * SIZE == bytes).then(|| EngineArray {
        dtype: "int32".to_owned(),
        shape: vec![rows, width],
        data: text.to_owned(),
    })
}

/// The ids that were left to sample each token from: all of them one behind the other under `name`,
/// and under `name_offsets` where those of each token begin, and where the last ones end.
pub(crate) fn of_kept_ids(name: &str, kept: &[Vec<u32>], out: &mut BTreeMap<String, EngineArray>) {
    let mut end = 0_u32;
    let ends = kept.iter().map(|ids| {
        end = end.saturating_add(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        end
    });
    let offsets: Vec<u32> = std::iter::once(0).chain(ends).collect();
    out.insert(format!("{name}_offsets"), of_numbers(&offsets));
    out.insert(name.to_owned(), of_numbers(&kept.concat()));
}

fn of_numbers(numbers: &[u32]) -> EngineArray {
    row("uint32", numbers.iter().map(|number| number.to_le_bytes()))
}

pub(crate) fn of_floats(numbers: &[f32]) -> EngineArray {
    row("float32", numbers.iter().map(|number| number.to_le_bytes()))
}

fn row(dtype: &str, numbers: impl ExactSizeIterator<Item = [u8; 4]>) -> EngineArray {
    let shape = vec![numbers.len() as u64];
    let bytes: Vec<u8> = numbers.flatten().collect();
    EngineArray { dtype: dtype.to_owned(), shape, data: STANDARD.encode(bytes) }
}

fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    header.split_once(name).map(|(_, rest)| rest.trim_start())
}

fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('\'')?.split_once('\'').map(|(inside, _)| inside)
}

fn shape(text: &str) -> Option<Vec<u64>> {
    let (inside, _) = text.strip_prefix('(')?.split_once(')')?;
    let sides = inside.split(',').map(str::trim).filter(|side| !side.is_empty());
    sides.map(|side| side.parse().ok()).collect()
}

/// NumPy's name of a number's type, and its bytes.
fn dtype(spelled: &str) -> Option<(&'static str, u64)> {
    Some(match spelled {
        "|u1" => ("uint8", 1),
        "|i1" => ("int8", 1),
        "<u2" => ("uint16", 2),
        "<i2" => ("int16", 2),
        "<u4" => ("uint32", 4),
        "<i4" => ("int32", 4),
        "<i8" => ("int64", 8),
        "<f2" => ("float16", 2),
        "<f4" => ("float32", 4),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: &[u8]) -> String {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        STANDARD.encode(bytes)
    }

    #[test]
    fn an_array_of_numpy_keeps_its_type_and_shape() {
        let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 1, 3), }   \n";
        let data = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
        let array = from_npy(&npy(header, &data)).unwrap();
        assert_eq!((array.dtype.as_str(), array.shape.as_slice()), ("uint16", &[2, 1, 3][..]));
        assert_eq!(STANDARD.decode(array.data).unwrap(), data);
        let flat = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!(from_npy(&npy(flat, &[7, 8, 9])).unwrap().shape, [3]);
    }

    #[test]
    fn what_is_not_a_whole_array_is_none() {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!(from_npy(&npy(header, &[7, 8])), None, "cut");
        let columns = header.replace("False", "True");
        assert_eq!(from_npy(&npy(&columns, &[7, 8, 9])), None, "by columns");
        assert_eq!(from_npy(&npy(&header.replace("|u1", "|O"), &[7, 8, 9])), None, "objects");
        assert_eq!(from_npy("AAAA"), None);
        assert_eq!(from_npy("not base64"), None);
        let huge = header.replace("(3,)", "(18446744073709551615, 18446744073709551615)");
        assert_eq!(from_npy(&npy(&huge, &[7])), None, "more than there can be");
    }

    #[test]
    fn rows_are_as_many_as_tokens_had_experts() {
        let text = STANDARD.encode([0_u8; 24]);
        assert_eq!(from_rows(&text, 3).unwrap().shape, [3, 2]);
        assert_eq!(from_rows(&text, 4), None);
        assert_eq!(from_rows(&text, 0), None);
    }

    #[test]
    fn kept_ids_are_found_by_their_offsets() {
        let mut arrays = BTreeMap::new();
        of_kept_ids("kept", &[vec![5, 6], vec![], vec![7]], &mut arrays);
        assert_eq!(arrays["kept"], of_numbers(&[5, 6, 7]));
        assert_eq!(arrays["kept_offsets"], of_numbers(&[0, 2, 2, 3]));
    }
}
