package catalog

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// YAML writes a JSON document as YAML, with its members in the same order.
func YAML(document []byte) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Unmarshal(document, &n); err != nil { // JSON is YAML, in its flow style
		return nil, fmt.Errorf("write the document as YAML: %w", err)
	}
	block(&n)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return nil, fmt.Errorf("write the document as YAML: %w", err)
	}
	return out.Bytes(), e.Close()
}

// block gives a node and all in it the style that the encoder chooses for the value.
func block(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		block(child)
	}
}
