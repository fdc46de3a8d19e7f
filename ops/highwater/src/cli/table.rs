//! Plain tables: columns as wide as their widest cell, no colour, nothing a script would trip over.

use serde_json::Value;

/// A head and rows of the same number of cells.
pub(super) fn print(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A JSON value as a cell: lists by commas, nothing as `-`.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["orders".to_owned(), "7".to_owned()], vec!["x".to_owned(), "10".to_owned()]];
        assert_eq!(print(&["TOPIC", "P"], &rows), "TOPIC   P\norders  7\nx       10\n");
    }

    #[test]
    fn absent_values_are_dashes() {
        assert_eq!(cell(&serde_json::json!(null)), "-");
        assert_eq!(cell(&serde_json::json!([1, 2])), "1,2");
        assert_eq!(cell(&serde_json::json!([])), "-");
    }
}
