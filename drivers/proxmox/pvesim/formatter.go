package pvesim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// The formats of answers: what stands between /api2/ and the path of a call picks one
// (PVE/APIServer/Formatter/Standard.pm). All of them are written from the same content.

// formatter writes the content of an answer.
type formatter func(content map[string]any) (contentType string, body []byte)

// formatters are the formats by name.
func formatters() map[string]formatter {
	return map[string]formatter{"json": inJSON, "extjs": inJSON, "htmljs": inEntities, "html": inHTML, "png": inImage, "spiceconfig": inViewer}
}

func inJSON(content map[string]any) (string, []byte) {
	return "application/json;charset=UTF-8", encode(content)
}

// inEntities is JSON for a form that uploads, inHTML a page to look at: PVE's has a
// frame around it.
func inEntities(content map[string]any) (string, []byte) {
	return "text/html;charset=UTF-8", []byte(html.EscapeString(string(encode(content))))
}

func inHTML(content map[string]any) (string, []byte) {
	var b bytes.Buffer
	pretty := json.NewEncoder(&b)
	pretty.SetEscapeHTML(false)
	pretty.SetIndent("", "  ")
	if err := pretty.Encode(content); err != nil {
		panic(fmt.Sprintf("pvesim: an answer that is no JSON: %v", err)) // A handler's mistake.
	}
	return "text/html;charset=UTF-8", []byte("<!DOCTYPE html>\n<html><body><pre>" + html.EscapeString(b.String()) + "</pre></body></html>\n")
}

// inImage is the picture of an answer that has one.
func inImage(content map[string]any) (string, []byte) {
	data, _ := content["data"].(map[string]any)
	if picture, ok := data["image"].(string); ok && data["filename"] != "" {
		return "image/png", []byte(picture)
	}
	return "image/png", nil
}

// inViewer is a file for a viewer of SPICE consoles.
func inViewer(content map[string]any) (string, []byte) {
	data, ok := content["data"].(map[string]any)
	if !ok {
		return "application/x-virt-viewer;charset=UTF-8", nil
	}
	var b strings.Builder
	b.WriteString("[virt-viewer]\n")
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if data[key] != nil {
			fmt.Fprintf(&b, "%s=%s\n", key, perl.Text(data[key]))
		}
	}
	return "application/x-virt-viewer;charset=UTF-8", []byte(b.String())
}

// format writes the content of an answer in a format. ExtJS wants to be told in the
// content whether a call succeeded, and nothing by the status (prepare_response_data).
func (a *answer) format(name string) {
	if a.content == nil {
		return
	}
	if name == "extjs" || name == "htmljs" {
		a.content["success"] = perl.BoolInt(a.status < 400)
		if a.status >= 400 {
			a.slow = a.status == http.StatusUnauthorized
			a.content["status"] = a.status
			a.status, a.reason, a.connection = http.StatusOK, "OK", []string{"Keep-Alive"}
		}
	}
	write := formatters()[name]
	if write == nil {
		write = inJSON
	}
	a.contentType, a.body = write(a.content)
}
