//! Templates of paths, as a policy writes them: their segments, after `headgate.policy.path_templates` has checked them.

use crate::text::unquote;

/// A segment of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This text, decoded: percent-encoded characters are literal.
    Literal(String),
    /// `{name}`: any one segment.
    Any,
    /// `**`: any number of segments, none included.
    Below,
}

/// The segments of a template.
pub fn template_segments(template: &str) -> Vec<Segment> {
    let written = template.split('/').filter(|segment| !segment.is_empty());
    written.map(segment_of).collect()
}

fn segment_of(written: &str) -> Segment {
    if written == "**" {
        Segment::Below
    } else if is_parameter(written) {
        Segment::Any
    } else {
        Segment::Literal(unquote(written).into_owned())
    }
}

/// Whether this is a name in braces.
fn is_parameter(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or("");
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
