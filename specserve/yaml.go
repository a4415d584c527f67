package specserve

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// toYAML writes a JSON document as YAML, with its members in the same order.
func toYAML(document []byte) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Unmarshal(document, &n); err != nil { // JSON is YAML, in its flow style
		return nil, fmt.Errorf("write the document as YAML: %w", err)
	}
	if err := block(&n); err != nil {
		return nil, fmt.Errorf("write the document as YAML: %w", err)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return nil, fmt.Errorf("write the document as YAML: %w", err)
	}
	return out.Bytes(), e.Close()
}

// block sets the style of a node and all in it to the encoder's for such a value. A string gets the style of a Go
// string: the encoder then quotes what YAML 1.1 takes for a boolean or a number, such as yes, off and 1:20.
func block(n *yaml.Node) error {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		var written yaml.Node
		if err := written.Encode(n.Value); err != nil {
			return err
		}
		if n.Style = written.Style; n.Value == "=" {
			n.Style = yaml.DoubleQuotedStyle // a type of its own there
		}
	}
	for _, child := range n.Content {
		if err := block(child); err != nil {
			return err
		}
	}
	return nil
}
