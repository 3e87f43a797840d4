"""A flat, comparable view of a FileDescriptorSet: full name -> fields, values or methods as plain tuples."""

from google.protobuf import descriptor_pb2

_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    number: name[len("TYPE_"):].lower()
    for name, number in _F.Type.items()
    if number not in (_F.TYPE_MESSAGE, _F.TYPE_ENUM, _F.TYPE_GROUP)
}
_LABELS = {_F.LABEL_OPTIONAL: "", _F.LABEL_REQUIRED: "required", _F.LABEL_REPEATED: "repeated"}


class Index:
  """The tables of one set.

  messages: name -> {field number: (name, type, label, oneof, packed)}
  enums:    name -> {number: value name}
  services: name -> {method: (request, response, client streams, server streams)}
  """

  def __init__(self, files):
    self.messages, self.enums, self.services = {}, {}, {}
    self._raw = {}
    self._maps = {}
    for file in files.file:
      prefix = file.package + "." if file.package else ""
      for message in file.message_type:
        self._scan(prefix + message.name, message)
      for enum in file.enum_type:
        self.enums[prefix + enum.name] = {v.number: v.name for v in enum.value}
      for service in file.service:
        self.services[prefix + service.name] = {
            m.name: (m.input_type.lstrip("."), m.output_type.lstrip("."), m.client_streaming,
                     m.server_streaming) for m in service.method
        }
    for name, message in self._raw.items():
      self.messages[name] = {f.number: self._field(message, f) for f in message.field}

  def _scan(self, full, message):
    (self._maps if message.options.map_entry else self._raw)[full] = message
    for nested in message.nested_type:
      self._scan(full + "." + nested.name, nested)
    for enum in message.enum_type:
      self.enums[full + "." + enum.name] = {v.number: v.name for v in enum.value}

  def _type(self, field):
    if field.type in _SCALARS:
      return _SCALARS[field.type]
    name = field.type_name.lstrip(".")
    if name in self._maps:
      key, value = self._maps[name].field
      return "map<%s, %s>" % (self._type(key), self._type(value))
    return name

  def _field(self, message, field):
    type_text = self._type(field)
    label = "" if type_text.startswith("map<") else _LABELS[field.label]
    oneof = ""
    if field.proto3_optional:
      label = "optional"
    elif field.HasField("oneof_index"):
      oneof = message.oneof_decl[field.oneof_index].name
    packed = field.options.packed if field.options.HasField("packed") else None
    return (field.name, type_text, label, oneof, packed)

  def reachable(self, roots):
    """Names of the messages, enums and services that the roots lead to, the roots included."""
    seen, queue = set(), list(roots)
    while queue:
      name = queue.pop()
      if name in seen:
        continue
      if name in self.services:
        seen.add(name)
        for request, response, _, _ in self.services[name].values():
          queue += [request, response]
      elif name in self.enums:
        seen.add(name)
      elif name in self.messages:
        seen.add(name)
        for _, type_text, _, _, _ in self.messages[name].values():
          if type_text.startswith("map<"):
            type_text = type_text[len("map<"):-1].split(", ")[1]
          queue.append(type_text)
    return seen
