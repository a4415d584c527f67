package control

import (
	"context"
	"net/http"
)

// These are for the external tests, which import controltest.
var (
	Between = between
	Read    = read
)

// Kept is how many events a log keeps.
const Kept = kept

// Call makes any request, also one that no method makes.
func (c *Client) Call(ctx context.Context, method, path string, body, into any) error {
	return c.call(ctx, method, path, body, into)
}

// Send makes a request and leaves its answer open.
func (c *Client) Send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	return c.send(ctx, method, path, body)
}

// By is by.
var By = by
