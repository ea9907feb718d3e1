package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// networksAnnotation names the networks that a Pod is plugged into besides the pod network (Kubernetes Network Custom Resource
// Definition De-facto Standard, version 1.3, section 4.1).
const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// attachmentDefinitions are what the annotation names.
var attachmentDefinitions = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// attachment is one interface that a Pod has on a VLAN.
type attachment struct {
	// Interface is its name in the Pod.
	Interface string
	// Bridge that it is plugged into: each VLAN of a bridge is a bridge here, <bridge>.<VLAN ID>.
	Bridge string
	// MAC is its hardware address; a random one if empty.
	MAC string
	// Addresses that IPAM gives it.
	Addresses []netip.Prefix
}

// selection is one entry of the annotation.
type selection struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	Interface string   `json:"interface"`
	MAC       string   `json:"mac"`
	IPs       []string `json:"ips"`
}

// plugin is the configuration of a CNI plugin, as far as it is known here.
type plugin struct {
	Type    string   `json:"type"`
	Bridge  string   `json:"bridge"`
	VLAN    int      `json:"vlan"`
	Plugins []plugin `json:"plugins"`
	IPAM    struct {
		Type      string `json:"type"`
		Addresses []struct {
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"ipam"`
}

// attachments are what a Pod's annotation asks for.
func (k *Kubelet) attachments(ctx context.Context, p *corev1.Pod) ([]attachment, error) {
	selections, err := selected(p.Annotations[networksAnnotation])
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
	}
	var all []attachment
	for i, s := range selections {
		if s.Namespace == "" {
			s.Namespace = p.Namespace
		}
		if s.Interface == "" {
			s.Interface = fmt.Sprintf("net%d", i+1)
		}
		a, err := k.attachment(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("NetworkAttachmentDefinition %s/%s: %w", s.Namespace, s.Name, err)
		}
		all = append(all, a)
	}
	return all, nil
}

// selected reads the annotation: JSON, or names separated by commas ("namespace/name@interface").
func selected(annotation string) ([]selection, error) {
	annotation = strings.TrimSpace(annotation)
	if annotation == "" {
		return nil, nil
	}
	var selections []selection
	if strings.HasPrefix(annotation, "[") {
		decoder := json.NewDecoder(bytes.NewReader([]byte(annotation)))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&selections)
		return selections, err
	}
	for entry := range strings.SplitSeq(annotation, ",") {
		var s selection
		entry, s.Interface, _ = strings.Cut(strings.TrimSpace(entry), "@")
		var named bool
		if s.Namespace, s.Name, named = strings.Cut(entry, "/"); !named {
			s.Namespace, s.Name = "", entry
		}
		selections = append(selections, s)
	}
	return selections, nil
}

func (k *Kubelet) attachment(ctx context.Context, s selection) (attachment, error) {
	a := attachment{Interface: s.Interface, MAC: s.MAC}
	definition, err := k.dynamic.Resource(attachmentDefinitions).Namespace(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return a, err
	}
	config, _, err := unstructured.NestedString(definition.Object, "spec", "config")
	if err != nil {
		return a, err
	}
	var p plugin
	if err := json.Unmarshal([]byte(config), &p); err != nil {
		return a, fmt.Errorf("spec.config: %w", err)
	}
	if len(p.Plugins) > 0 {
		p = p.Plugins[0]
	}
	if p.Type != "bridge" && p.Type != "cnv-bridge" {
		return a, fmt.Errorf("the test kubelet knows CNI plugins of type bridge only, not %q", p.Type)
	}
	if a.Bridge = p.Bridge; a.Bridge == "" {
		return a, errors.New("spec.config names no bridge")
	}
	if p.VLAN != 0 {
		a.Bridge = fmt.Sprintf("%s.%d", p.Bridge, p.VLAN)
	}
	texts := s.IPs
	switch p.IPAM.Type {
	case "":
		if len(texts) > 0 {
			return a, errors.New("the Pod asks for addresses, and there is no IPAM")
		}
	case "static":
		for _, address := range p.IPAM.Addresses {
			texts = append(texts, address.Address)
		}
	default:
		return a, fmt.Errorf("the test kubelet knows IPAM of type static only, not %q", p.IPAM.Type)
	}
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return a, err
		}
		a.Addresses = append(a.Addresses, prefix)
	}
	return a, nil
}
