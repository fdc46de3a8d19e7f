//! Bodies of HTTP requests in one piece.
//!
//! A body that comes in single bytes is a list of single bytes to axum, which costs sixty times what was sent. Both servers
//! of a node, the controller listener and the admin API, copy it together as it comes.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use futures::StreamExt as _;

/// Memory taken before the first byte has come, whatever length is announced.
const FIRST_BYTES: usize = 64 << 10;

/// Why a body cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("the body broke off: {0}")]
    BrokeOff(String),
}

/// The same request with its body, of at most `bytes_max` bytes, read and in one piece.
///
/// # Errors
/// See [`BodyFault`]; of a body that is announced to be too large nothing is read.
pub async fn in_one_piece(request: Request, bytes_max: usize) -> Result<Request, BodyFault> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let announced = announced.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if announced > bytes_max {
        return Err(BodyFault::TooLarge { bytes_max });
    }
    let (head, body) = request.into_parts();
    let mut pieces = body.into_data_stream();
    let mut whole = Vec::with_capacity(announced.min(FIRST_BYTES));
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| BodyFault::BrokeOff(error.to_string()))?;
        if whole.len() + piece.len() > bytes_max {
            return Err(BodyFault::TooLarge { bytes_max });
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Request::from_parts(head, Body::from(whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(pieces: Vec<&'static str>) -> Request {
        let pieces = pieces.into_iter().map(Ok::<_, std::io::Error>);
        Request::new(Body::from_stream(futures::stream::iter(pieces)))
    }

    #[tokio::test]
    async fn pieces_become_one_and_too_many_are_refused() {
        let whole = in_one_piece(in_pieces(vec!["a", "b", "c"]), 3).await.unwrap();
        let mut pieces = whole.into_body().into_data_stream();
        assert_eq!(pieces.next().await.unwrap().unwrap(), "abc");
        assert!(pieces.next().await.is_none());
        let refused = in_one_piece(in_pieces(vec!["a", "b", "cd"]), 3).await.unwrap_err();
        assert_eq!(refused, BodyFault::TooLarge { bytes_max: 3 });
    }

    #[tokio::test]
    async fn what_is_announced_to_be_too_large_is_not_read() {
        let mut request = in_pieces(vec!["a"]);
        request.headers_mut().insert(CONTENT_LENGTH, "1000000000000000000".parse().unwrap());
        assert_eq!(in_one_piece(request, 3).await.unwrap_err(), BodyFault::TooLarge { bytes_max: 3 });
    }
}
