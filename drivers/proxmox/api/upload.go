package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
)

// Upload sends size bytes to the path of a storage and waits for the task that takes
// them in; fields has content, filename and
// perhaps a checksum.
func (c *Client) Upload(ctx context.Context, path string, fields Params, file io.Reader, size int64) error {
	var frame bytes.Buffer
	form := multipart.NewWriter(&frame)
	for _, k := range []string{"content", "checksum-algorithm", "checksum"} {
		if v, ok := fields[k]; ok {
			_ = form.WriteField(k, fmt.Sprint(v)) // a bytes.Buffer takes everything
		}
	}
	_, _ = form.CreateFormFile("filename", fmt.Sprint(fields["filename"]))
	head := bytes.Clone(frame.Bytes())
	_ = form.Close()
	tail := frame.Bytes()[len(head):]
	body := io.MultiReader(bytes.NewReader(head), file, bytes.NewReader(tail))
	req, err := c.NewRequest(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(head)) + size + int64(len(tail))
	req.Header.Set("Content-Type", form.FormDataContentType())
	res, err := c.http.Do(req)
	if err != nil {
		return c.AwaitWrite(ctx, "", c.call(err))
	}
	defer res.Body.Close()
	var doc struct{ Data json.RawMessage }
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return c.AwaitWrite(ctx, upidOf(doc.Data), nil)
}
